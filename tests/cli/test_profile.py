from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import cli
from headwater.cli.presets import PRESETS
from headwater.measure.logbook import Logbook, newest
from stores import running_daemon

SAMPLES = 1024


@pytest.fixture(scope="module")
def store(photo_folder: Path) -> Iterator[str]:
    with running_daemon({"photos": photo_folder}) as daemon:
        yield f"{daemon.serving.address}/photos"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "cache"


def profile(uri: str, *words: object) -> int:
    sizes = ("--samples", SAMPLES, "--batch-size", 16, "--transform", "cifar")
    return cli.run(["profile", uri, *map(str, (*sizes, *words))])


def test_it_measures_every_resource_and_way(
    store: str, photo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile(store, "--json", "--save", tmp_path / "run.json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["uri"] == store
    assert found["dataset"] == hw.open(photo_folder).version
    assert sum(way["done"] for way in found["ways"]) >= SAMPLES
    assert all(way["asked"] for way in found["ways"])
    saved, kept = Logbook.load(tmp_path / "run.json"), newest(uri=store)
    assert kept is not None
    assert saved.key == kept.key
    assert saved.profile == kept.profile != {}
    assert all(stretch.rates.link > 0 for stretch in saved.stretches[-1:])


def test_its_logbook_can_be_planned_with_and_explained(
    store: str, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile(store, "--trainer-rate", 20_000) == 0
    assert "The four resources" in capsys.readouterr().out
    # the same data in another place
    words = ["plan", str(photo_folder), "--transform", "cifar", "--link", "1Mbit", "--store-cores", "4"]
    assert cli.run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["after"]["seconds"] <= found["before"]["seconds"]
    assert found["pipeline"] == str(PRESETS["cifar"]().samplewise)
    assert cli.run(["explain", store, "--sample", str(hw.open(photo_folder).ids[0])]) == 0
    assert "chosen" in capsys.readouterr().out


def test_data_without_a_store_is_wrong_use(photo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile(str(photo_folder)) == 2
    assert "there is no store" in capsys.readouterr().err


def test_an_unknown_transform_is_wrong_use(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile(store, "--transform", "nope") == 2
    assert "known: imagenet" in capsys.readouterr().err
