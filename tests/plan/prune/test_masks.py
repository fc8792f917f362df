"""Which channels are kept at a ratio, and what is kept besides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headwater.errors import ModelError, StateMismatch, WrongUse
from headwater.plan.prune import Channels, PrunePlan, make_plan
from headwater.plan.prune.masks import mask_at, widen

LAYERS = Channels(("one", "two"), (4, 6))
RISING = np.array([0.1, 0.2, 0.3, 0.4, 0.05, 0.15, 0.25, 0.35, 0.45, 0.55])


def test_one_threshold_serves_all_layers() -> None:
    keep = mask_at(LAYERS, RISING, 0.5).keep
    assert np.flatnonzero(~keep).tolist() == [0, 1, 4, 5, 6]
    assert LAYERS.widths(keep) == (2, 3)


@pytest.mark.parametrize(("ratio", "gone"), [(0.1, 1), (0.29, 2), (0.3, 3), (0.7, 7), (0.95, 9)])
def test_exactly_the_ratio_goes_rounded_down(ratio: float, gone: int) -> None:
    assert np.count_nonzero(~mask_at(LAYERS, RISING, ratio).keep) == gone


@pytest.mark.parametrize("ratio", [0.0, 0.05, 1.0, -0.5, np.nan, np.inf, -np.inf, None, "0.5"])
def test_a_ratio_that_removes_nothing_or_all_is_refused(ratio: Any) -> None:
    with pytest.raises(WrongUse, match="of 10 channels"):
        mask_at(LAYERS, RISING, ratio)


def test_scales_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ModelError, match="training ran away"):
        mask_at(LAYERS, np.where(RISING > 0.5, np.nan, RISING), 0.5)


def test_equal_scales_go_in_equal_shares_of_their_layers() -> None:
    """As of a fresh model; a strict threshold, as published, would keep nothing."""
    mask = mask_at(LAYERS, np.full(10, 0.5), 0.5)
    assert LAYERS.widths(mask.keep) == (2, 3)
    assert mask.undecided == 0.5


def test_what_equal_scales_leave_open_is_said() -> None:
    scales = RISING.copy()
    assert mask_at(LAYERS, scales, 0.5).undecided == 0
    scales[:3] = 0.25  # with the one that has it: the fifth to go, and three that stay or go
    assert mask_at(LAYERS, scales, 0.5).undecided == pytest.approx(0.1)
    assert mask_at(LAYERS, np.zeros(10), 0.5).undecided == 0  # all of them are gone anyway


def test_a_layer_that_would_lose_all_its_channels_keeps_its_best() -> None:
    scales = np.array([0.01, 0.04, 0.02, 0.03, 1, 1.1, 1.2, 1.3, 1.4, 1.5])
    keep = mask_at(LAYERS, scales, 0.5).keep
    assert LAYERS.widths(keep) == (0, 5)
    assert np.flatnonzero(widen(LAYERS, scales, keep)).tolist() == [1, 5, 6, 7, 8, 9]


def test_layers_are_rounded_up_with_the_best_that_would_go() -> None:
    keep = mask_at(LAYERS, RISING, 0.5).keep
    wide = widen(LAYERS, RISING, keep, multiple=4)
    assert LAYERS.widths(wide) == (4, 4)
    assert np.flatnonzero(wide & ~keep).tolist() == [0, 1, 6]
    assert LAYERS.widths(widen(LAYERS, RISING, keep, multiple=8)) == (4, 6)  # no more than there are


@pytest.mark.parametrize(
    "change", [{"keep": "0000"}, {"keep": "0fc0"}, {"step": -3}, {"ratio": 7.0}, {"ratio": np.nan}], ids=str
)
def test_a_plan_that_no_rule_makes_is_refused(change: dict[str, Any]) -> None:
    state = make_plan(LAYERS, RISING, ratio=0.5).to_dict()
    with pytest.raises(StateMismatch, match="this is not a plan of channels: ratio"):
        PrunePlan.from_dict({**state, **change})


def test_a_plan_comes_back_from_plain_data() -> None:
    plan = make_plan(LAYERS, RISING, ratio=0.5, multiple=2, step=40, reason="because")
    again = type(plan).from_dict(plan.to_dict())
    assert again.keep.tolist() == plan.keep.tolist()
    assert (again.channels, again.ratio, again.step, again.reason) == (LAYERS, 0.5, 40, "because")
    assert {name: places.tolist() for name, places in again.drops().items()} == {"one": [0, 1], "two": [0, 1]}
    assert str(again).splitlines() == [
        "40% of 10 channels go, after 40 steps: because",
        "  one: 2 of 4",
        "  two: 4 of 6",
    ]
