"""The lowest of each class: against a sort, with ties and unknown scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from columns import make_samples, seeds
from headwater.errors import WrongUse
from headwater.select.choosing import (
    by_class,
    check_part,
    check_share,
    distinct,
    known,
    lowest,
    mark_lowest,
    part_of,
)


@given(seed=seeds)
@settings(max_examples=150, deadline=None)
def test_the_same_as_a_sort_of_each_class(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, share, turn = int(rng.integers(1, 60)), float(rng.uniform(0.05, 1)), int(rng.integers(0, 4))
    labels = rng.integers(-1, 4, count) * int(rng.choice([1, 100_000]))
    scores = rng.integers(0, 6, count).astype(np.float32)
    scores[rng.random(count) < 0.2] = np.nan
    wanted: list[int] = []
    for label, size in zip(*np.unique(labels, return_counts=True), strict=True):
        (budget,) = part_of(np.array([size]), share)
        places = np.flatnonzero(labels == label)
        order = places[np.argsort(scores[places], kind="stable")]
        first = min(turn * budget, len(places) - budget)
        wanted.extend(order[first : first + budget])
    assert lowest(scores, labels, share=share, turn=turn).tolist() == sorted(wanted)


def test_a_share_of_each_class_is_rounded_up() -> None:
    labels = np.array([0] * 10 + [1] * 3 + [7])
    assert part_of(np.array([10, 3, 1]), 0.3).tolist() == [3, 1, 1]
    assert len(lowest(np.arange(14.0), labels, share=0.3)) == 5
    assert len(lowest(np.arange(14.0), labels, share=1)) == 14


def test_nothing_of_nothing() -> None:
    nothing = np.empty(0, np.int64)
    assert lowest(np.empty(0), nothing, share=0.5).tolist() == []
    assert distinct(nothing).tolist() == []
    assert mark_lowest(np.empty(0), 3).tolist() == []


@pytest.mark.parametrize("labels", [[5, 3, 3, -1, 5], [10**12, 0, 10**12, 7, 0]])
def test_classes_far_apart_or_close(labels: list[int]) -> None:
    found = np.array(labels)
    order, begins = by_class(found)
    assert distinct(found).tolist() == sorted(set(labels))
    assert [found[order[begin]] for begin in begins[:-1]] == sorted(set(labels))
    assert order.tolist() == np.argsort(found, kind="stable").tolist()
    assert begins[-1] == len(labels)


def test_unknown_scores_are_the_highest() -> None:
    scores = np.array([np.nan, 2, np.inf, 1, np.nan])
    assert np.flatnonzero(mark_lowest(scores, 3)).tolist() == [1, 2, 3]
    assert np.flatnonzero(mark_lowest(scores, 4)).tolist() == [0, 1, 2, 3]
    assert not mark_lowest(scores, 0).any()


def test_an_infinite_loss_is_not_known() -> None:
    samples = make_samples(3, loss=[1, np.inf, np.nan])
    assert known(samples, "loss").tolist() == [True, False, False]


def test_wrong_numbers_are_refused() -> None:
    for share in (0, 1.1, float("nan")):
        with pytest.raises(WrongUse, match="above 0 and at most 1"):
            check_share(share)
    with pytest.raises(WrongUse, match=r"explore is -0\.1; it must be from 0 to 1"):
        check_part("explore", -0.1)
