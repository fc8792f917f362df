from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headwater as hw
from headwater.cli import race
from headwater.cli.presets import PRESETS


def test_rates_and_ratios_of_every_contender(headwater_json: Any, photo_folder: Path) -> None:
    found = headwater_json("bench", "loader", photo_folder, "--rounds", 2, "--batch-size", 8, "--workers", 2)
    assert set(found["images_per_second"]) == {"headwater", "bare read", "torch"}
    for spread in (*found["images_per_second"].values(), *found["headwater_against"].values()):
        assert 0 < spread["low"] <= spread["median"] <= spread["high"]
    assert found["samples"] == len(hw.open(photo_folder))
    assert set(found["work_seconds"]) == {"read", "steps"}


def test_a_round_takes_no_more_than_the_samples_asked_for(headwater: Any, photo_folder: Path) -> None:
    done = headwater("bench", "loader", photo_folder, "--rounds", 1, "--samples", 5, "--transform", "cifar")
    assert done.returncode == 0, done.stderr
    assert "5 samples" in done.stdout
    assert "bare read" in done.stdout


def test_an_unknown_transform_is_wrong_use(headwater: Any, photo_folder: Path) -> None:
    done = headwater("bench", "loader", photo_folder, "--transform", "nope")
    assert done.returncode == 2
    assert "known: imagenet" in done.stderr


@pytest.mark.parametrize("preset", PRESETS)
def test_torch_is_given_the_same_pixels(photo_folder: Path, preset: str) -> None:
    """What is compared must be the same work: torch's contender makes the loader's very batches."""
    data, pipeline = hw.open(photo_folder), PRESETS[preset]()
    ours = next(iter(hw.DataLoader(data, pipeline, batch_size=6, num_workers=0)))
    theirs = race.MapStyle(data, pipeline).__getitems__(range(6))
    assert torch.equal(ours.inputs, torch.stack([image for image, _ in theirs]))
    assert ours.targets.tolist() == [label for _, label in theirs]


def test_contenders_take_turns_and_the_first_round_does_not_count() -> None:
    turns: list[tuple[str, int]] = []

    def contender(name: str) -> race.Contender:
        return lambda epoch: turns.append((name, epoch)) or 10

    rates = race.race({"a": contender("a"), "b": contender("b")}, 2)
    assert turns == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert [len(values) for values in rates.values()] == [2, 2]


def test_spread() -> None:
    assert race.Spread.of([3.0, 1.0, 2.0]) == race.Spread(2.0, 1.0, 3.0)
    assert np.isclose(race.Spread.of([1.0, 2.0]).median, 1.5)
