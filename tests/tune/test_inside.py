"""Cuts between the layers: which are looked at, and what they would take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from exports import coloured, exported_plain
from headwater.models.crossing import Crossing, Crossings
from headwater.models.cutting import find_crossings
from headwater.plan.finetune import Convergence, Cut, Rates, Stages, Work, make_plan
from headwater.plan.finetune.choice import DOUBT
from headwater.tune.inside import MOST, Pace, shares, worthwhile


def crossings(*entries: tuple[int, int], work: int = 1200) -> Crossings:
    """From (how far along, numbers that cross)."""
    found = [Crossing(f"t{place}", (width,), done) for place, (done, width) in enumerate(entries)]
    return Crossings(tuple(found), work)


def names(found: list[Crossing]) -> list[str]:
    return [crossing.name for crossing in found]


def test_of_each_part_of_the_work_the_one_that_ships_least() -> None:
    found = crossings((10, 50), (20, 40), (99, 60), (100, 70), (150, 70), (600, 30), (650, 20), (690, 21))
    assert names(worthwhile(found, most_bytes=1e9)) == ["t1", "t4", "t6"]
    assert names(worthwhile(found, most_bytes=1e9, count=1)) == ["t6"]


def test_no_more_than_the_image_and_nothing_without_work_behind_it() -> None:
    found = crossings((100, 56), (600, 55), (1200, 10), (1200, 1))
    assert names(worthwhile(found, most_bytes=110)) == ["t1"]
    assert not worthwhile(crossings((1, 1000)), most_bytes=1999.9)
    assert not worthwhile(Crossings((), 0), most_bytes=1e9)


def test_never_more_than_can_be_measured_quickly() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        work = np.sort(rng.integers(0, 10**9, 300))
        entries = [
            (int(done), int(width)) for done, width in zip(work, rng.integers(1, 999, 300), strict=True)
        ]
        found = worthwhile(crossings(*entries, work=10**9), most_bytes=1500)
        assert 0 < len(found) <= MOST
        assert all(one.bytes <= 1500 for one in found)
        assert [one.work for one in found] == sorted(one.work for one in found)


def test_shares_grow_from_the_first_layer_to_the_last() -> None:
    model = exported_plain().model
    cuts = list(find_crossings(model.trunk))
    found = shares(model, cuts, coloured(8)[0])
    assert list(found) == [cut.name for cut in cuts]
    values = list(found.values())
    assert values == sorted(values)
    assert 0 < values[0] < values[-1] < 1


def test_a_cut_whose_values_are_too_large_is_left_out() -> None:
    """The first convolution gives millions, and the bound behind it at most 6."""
    model = exported_plain().model
    loud = replace(model, tensors={**model.tensors, "trunk/0.weight": 1e7 * model.tensors["trunk/0.weight"]})
    found = shares(loud, list(find_crossings(model.trunk))[:3], coloured(8)[0])
    assert list(found) == ["hardtanh", "getitem_3"]


def test_a_pace_divides_between_stores_and_tuner() -> None:
    pace = Pace(layers=0.030, steps=0.010, store=0.080)
    crossing = Crossing("relu", (10, 10), 1)
    half = pace.cut(crossing, 0.5)
    assert (half.name, half.bytes) == ("relu", 200)
    assert (half.store_seconds, half.tuner_seconds) == (pytest.approx(0.050), pytest.approx(0.015))
    assert pace.cut(crossing, 1.0).store_seconds == pytest.approx(0.080)
    assert pace.cut(crossing, 1.0).tuner_seconds == 0
    assert pace.cut(crossing, 0.0).store_seconds == pytest.approx(0.020), "the steps stay at the store"


def test_the_plan_takes_the_best_of_all_by_brute_force() -> None:
    """With as many candidates as are measured, and rates of all kinds; inner cuts are sometimes the best."""
    rng = np.random.default_rng(8)
    inner = 0
    for _ in range(200):
        pace = Pace(*(float(10 ** rng.uniform(-3, -1)) for _ in range(3)))
        cuts = [Cut("images", 0.0, 110_000, pace.layers + pace.steps)]
        for place in range(MOST):
            width = int(10 ** rng.uniform(3.5, 4.7))
            cuts.append(pace.cut(Crossing(f"t{place}", (width,), 1), (place + 0.5) / MOST))
        cuts.append(Cut("features", pace.store, 2_560))
        rates = Rates(store_cores=1.0, store_link=float(10 ** rng.uniform(5, 8)), tuner_cores=2.0)
        work = Work(1000)
        settings: dict[str, Any] = {"stores": 1, "image_bytes": 110_000.0, "steps": 1e6}
        plan = make_plan(cuts, work, rates=rates, convergence=Convergence(100), **settings)
        times = {
            cut.name: (DOUBT if cut.estimated else 1)
            * Stages.of(cut, work, rates=rates, stores=1).seconds(plan.runs)
            for cut in cuts
        }
        assert times[plan.cut.name] <= min(times.values()) * 1.05
        inner += plan.cut.name.startswith("t")
    assert 20 < inner < 200


def test_without_a_cut_there_is_no_share() -> None:
    assert shares(exported_plain().model, [], coloured(4)[0]) == {}
