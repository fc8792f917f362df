"""A dry run from a saved table chooses what the run's loader then chooses, or says what it cannot know."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import headwater as hw
from headwater import transforms as T
from headwater.loader.dryrun import Foretold, foretell
from headwater.loader.knowledge import ENDED, facts_of, look_at
from headwater.measure.signalfile import read_signals
from headwater.select.fresh import Fresh
from headwater.select.samples import Samples
from headwater.select.selecting import Selector
from headwater.select.selection import Selection
from headwater.select.uniform import Uniform


@pytest.fixture(scope="module")
def data(photo_folder: Path) -> hw.Dataset:
    return hw.open(photo_folder)


def pairs(data: hw.Dataset, **options: Any) -> hw.Duplicates:
    """The first samples of each class as groups of two."""
    groups = np.full(len(data), -1, np.int32)
    for label in np.unique(data.labels):
        groups[np.flatnonzero(data.labels == label)[:2]] = label
    return hw.Duplicates(groups, **options)


def run(data: hw.Dataset, folder: Path, **options: Any) -> hw.DataLoader:
    """A loader that has done an epoch."""
    loader = hw.DataLoader(
        data, [T.Resize((8, 8))], batch_size=8, seed=5, num_workers=0, signals=folder, **options
    )
    list(loader)
    return loader


def dry_run(loader: hw.DataLoader, folder: Path, selector: Selector, epoch: int = 1) -> Foretold:
    """By what the loader has saved."""
    data = loader.dataset
    table = read_signals(folder / f"{loader.state_dict()['signals']}.arrow", data.index)
    samples = look_at(data, table, epoch=epoch, **facts_of(table, epoch))
    return foretell(selector, samples, table)


def check_same(found: Selection, loader: hw.DataLoader) -> None:
    standing = loader.selection
    assert standing is not None
    assert standing.epoch == found.epoch
    assert found.places.tolist() == standing.places.tolist()
    assert found.weights.tolist() == standing.weights.tolist()
    assert found.reason == standing.reason


@pytest.mark.parametrize("mode", ["drop", "auto"])
def test_near_duplicates_are_left_out_as_the_run_does(data: hw.Dataset, tmp_path: Path, mode: str) -> None:
    loader = run(data, tmp_path, select=Fresh(share=0.7), duplicates=pairs(data, mode=mode))
    found = dry_run(loader, tmp_path, Fresh(share=0.7))
    assert "near-duplicates left out" in found.selection.reason
    assert found.unknown == ()
    check_same(found.selection, loader)


def test_what_a_cache_will_hold_is_not_known(data: hw.Dataset, tmp_path: Path) -> None:
    loader = run(data, tmp_path, duplicates=pairs(data, mode="stand_in"), cache=1 << 20)
    found = dry_run(loader, tmp_path, Uniform())
    assert len(found.selection) == len(data)
    (said,) = found.unknown
    assert "up to what the cache holds" in said


def test_how_long_training_will_wait_is_not_known(data: hw.Dataset, tmp_path: Path) -> None:
    loader = run(data, tmp_path, duplicates=pairs(data), cache=1 << 20)
    loader.signals.notes["history"][-1]["stalled"] = 0.0  # whatever this machine does
    assert dry_run(loader, tmp_path, Uniform()).unknown == (), "the run has selected for this epoch"
    (said,) = dry_run(loader, tmp_path, Uniform(), epoch=2).unknown
    assert said.endswith("before epoch 2: if it is 0% of its time, near-duplicates are left out")
    loader.signals.notes["history"][-1]["stalled"] = 0.75
    held, waits = dry_run(loader, tmp_path, Uniform(), epoch=2).unknown
    assert "the cache holds" in held
    assert waits.endswith("if it is 75% of its time, near-duplicates stand in for each other")


def test_a_selector_that_has_ended_has_ended_here_too(data: hw.Dataset, tmp_path: Path) -> None:
    loader = run(data, tmp_path, select=Fresh(share=0.5), duplicates=pairs(data, mode="drop"))
    loader.signals.notes[ENDED] = "selecting costs 9 s an epoch more than it saves"
    list(loader)  # the second epoch; the third is selected for behind it
    found = dry_run(loader, tmp_path, Fresh(share=0.5), epoch=2)
    assert found.selection.reason.startswith("everything: selecting costs 9 s an epoch")
    check_same(found.selection, loader)
    other = dry_run(loader, tmp_path, Uniform(share=0.5), epoch=2).selection
    assert len(other) < 0.7 * len(data), "it is not the one that has ended"


@dataclass
class Afar:
    """An `hw.Beside` of `fresh`, as a loader sees it, which says what it is told to."""

    name = "fresh beside the data"
    state: ClassVar = {"run": "mine"}
    dropped: str = ""
    told: list[int] = field(default_factory=list)

    def attach(self, ranks: Any) -> None: ...
    def resume(self, selection: Selection) -> None: ...
    def trained(self, seconds: float, *, whole: bool, visited: int, everything: int) -> None: ...

    def select_epoch(self, samples: Samples) -> Selection | None:
        if not self.dropped:
            return None
        places = np.arange(len(samples))
        weights, reason = np.ones(len(samples), np.float32), f"everything: {self.dropped}"
        return Selection(self.name, samples.epoch, places, weights, reason, state={"dropped": self.dropped})


def test_what_stores_select_is_not_known(data: hw.Dataset, tmp_path: Path) -> None:
    loader = run(data, tmp_path, select=Afar())
    found = dry_run(loader, tmp_path, Fresh())
    assert len(found.selection) < len(data)
    assert found.unknown == (
        "stores select for this run, by a proxy of its model; here it is by what the trainer knows",
    )
    assert dry_run(loader, tmp_path, Uniform()).unknown == (), "of another selector nobody asks the stores"


def test_selection_beside_the_data_that_has_ended_has_ended_here_too(
    data: hw.Dataset, tmp_path: Path
) -> None:
    loader = run(data, tmp_path, select=Afar("it does not pay"))
    found = dry_run(loader, tmp_path, Fresh())
    check_same(found.selection, loader)
    assert found.unknown == ()
