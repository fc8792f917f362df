"""Which estimated cuts are run before one is taken, and what becomes of their estimates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import headwater as hw
from headwater.data.pipeline import Pipeline
from headwater.engine.inference import FeatureBatch
from headwater.plan.finetune import Cut, Rates
from headwater.tune.finalists import MOST, run_finalists
from headwater.tune.runs import LOT, Places
from headwater.tune.sources import Sources

RATES = Rates(store_cores=1.0, store_link=1e9, tuner_cores=1.0)


class _Slow:
    """So many seconds for each sample, whatever was estimated."""

    bytes_moved = 0

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.closed = False

    def run(self, positions: Places, ids: Places, *, steps: Pipeline, variant: int) -> Iterator[FeatureBatch]:
        for start in range(0, len(ids), LOT):
            some = slice(start, start + LOT)
            time.sleep(self._seconds * len(ids[some]))
            yield FeatureBatch(positions[some], ids[some], np.zeros((len(ids[some]), 2), np.float16))

    def close(self) -> None:
        self.closed = True


class _Stage:
    """Gives a source for each cut, and remembers which were asked for."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.made = {name: _Slow(each) for name, each in seconds.items()}
        self.asked: list[str] = []

    def behind(self, cut: str, stores: int) -> _Slow:
        self.asked.append(cut)
        return self.made[cut]


class _Asked(Exception):
    """A cut was to be run."""


class _Refusing:
    def behind(self, cut: str, stores: int) -> _Slow:
        raise _Asked(cut)


def measure(cuts: list[Cut], stage: Any, colours: Path) -> dict[str, Cut]:
    data = hw.open(colours)
    found = run_finalists(cuts, data, stage, steps=Pipeline(()), rates=RATES, stores=1)
    assert [cut.name for cut in found] == [cut.name for cut in cuts]
    return {cut.name: cut for cut in found}


def inside(name: str, seconds: float) -> Cut:
    return Cut(name, seconds, 100.0, seconds / 10, estimated=True)


def test_a_cut_that_takes_longer_than_estimated_is_known_to(colours: Path) -> None:
    stage = _Stage({"early": 0.004, "late": 0.002})
    cuts = [Cut("images", 0.0, 1000.0, 0.003), inside("early", 0.001), inside("late", 0.002)]
    found = measure(cuts, stage, colours)
    assert sorted(stage.asked) == ["early", "late"]
    assert found["early"].store_seconds == pytest.approx(0.004, rel=0.4)
    assert found["early"].tuner_seconds == pytest.approx(found["early"].store_seconds / 10)
    assert found["late"].store_seconds < found["early"].store_seconds
    assert not any(cut.estimated for cut in found.values())
    assert all(stage.made[name].closed for name in stage.asked)


def test_only_the_quickest_are_run(colours: Path) -> None:
    cuts = [Cut("images", 0.0, 1000.0, 0.01), *(inside(f"cut {n}", 0.001 * (n + 1)) for n in range(4))]
    stage = _Stage({cut.name: 0.0 for cut in cuts})
    found = measure(cuts, stage, colours)
    assert stage.asked == ["cut 0", "cut 1"]
    assert len(stage.asked) == MOST
    assert [cut.estimated for cut in found.values()] == [False, False, False, True, True]


def test_cuts_are_ranked_by_all_images_not_by_the_few_that_are_timed() -> None:
    """With two lots, what fills and empties the stages would make a cut that shares the work look slow."""
    many = cast(hw.Dataset, range(10_000))
    cuts = [Cut("features", 0.0014, 50.0), Cut("middle", 0.001, 100.0, 0.001, estimated=True)]
    stage = _Refusing()
    with pytest.raises(_Asked):
        run_finalists(cuts, many, cast(Sources, stage), steps=Pipeline(()), rates=RATES, stores=1)


def test_what_is_not_quicker_than_a_measured_one_is_not_run(colours: Path) -> None:
    cuts = [Cut("features", 0.001, 50.0), inside("late", 0.002)]
    stage = SimpleNamespace(behind=None)
    assert measure(cuts, stage, colours)["late"].estimated
