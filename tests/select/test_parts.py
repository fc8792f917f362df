"""Parts, their pieces, and stacks of those of one size."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from columns import make_samples, seeds
from headwater.errors import WrongUse
from headwater.select.parts import Parts, Picks


def runs(parts: Parts) -> list[list[int]]:
    return [part.tolist() for part in np.split(parts.order, np.cumsum(parts.sizes)[:-1])]


@given(seed=seeds, count=st.integers(1, 60), share=st.floats(0.01, 1), chunk=st.integers(1, 30))
@settings(max_examples=200, deadline=None)
def test_pieces_cover_every_part_evenly_and_give_what_it_gives(
    seed: int, count: int, share: float, chunk: int
) -> None:
    rng = np.random.default_rng(seed)
    samples = make_samples(count, labels=rng.integers(-1, 4, count))
    parts = Parts.of_classes(samples, np.arange(count), share=share)
    assert sorted(parts.order) == list(range(count))
    found = iter(zip(runs(parts.split(chunk)), parts.split(chunk).budgets.tolist(), strict=True))
    for run, budget in zip(runs(parts), parts.budgets.tolist(), strict=True):
        assert len(set(samples.labels[run])) == 1
        assert budget == max(1, np.ceil(len(run) * share - 1e-9))
        wanted = min(-(-len(run) // chunk), budget)
        pieces, gives = zip(*(next(found) for _ in range(wanted)), strict=True)
        assert list(chain.from_iterable(pieces)) == run
        assert sum(gives) == budget
        assert all(1 <= give <= len(piece) for piece, give in zip(pieces, gives, strict=True))
        assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
        assert max(map(len, pieces)) <= chunk or wanted == budget
    assert next(found, None) is None


@given(seed=seeds, cells=st.integers(1, 200))
@settings(max_examples=100, deadline=None)
def test_stacks_hold_every_part_once_and_no_more_pairs_than_allowed(seed: int, cells: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, 20)
    parts = Parts(rng.permutation(sizes.sum()), sizes, rng.integers(1, sizes + 1))
    found = []
    for rows, budget in parts.stacks(cells):
        assert len(rows) == 1 or rows.size * rows.shape[1] <= cells
        found += [(row, budget) for row in rows.tolist()]
    assert sorted(found) == sorted(zip(runs(parts), parts.budgets.tolist(), strict=True))


def test_the_order_of_a_class_is_drawn_anew_in_every_epoch_and_goes_by_ids() -> None:
    samples = make_samples(200, labels=[0, 1] * 100)
    rows = np.random.default_rng(0).permutation(200)
    one = Parts.of_classes(samples, np.arange(200), share=0.1)
    turned = samples.take(rows)
    same = Parts.of_classes(turned, np.arange(200), share=0.1)
    assert samples.ids[one.order].tolist() == turned.ids[same.order].tolist()
    other = Parts.of_classes(make_samples(200, labels=[0, 1] * 100, epoch=1), np.arange(200), share=0.1)
    assert np.count_nonzero(one.order == other.order) < 20


def test_only_places_that_are_asked_for() -> None:
    parts = Parts.of_classes(make_samples(6, labels=[0, 0, 1, 1, 2, 2]), np.array([0, 3, 2]), share=0.5)
    assert [sorted(run) for run in runs(parts)] == [[0], [2, 3]]
    assert parts.budgets.tolist() == [1, 1]


def test_some_of_the_parts() -> None:
    parts = Parts(np.arange(6), np.array([1, 2, 3]), np.array([1, 1, 2]))
    some = parts.where(np.array([True, False, True]))
    assert runs(some) == [[0], [3, 4, 5]]
    assert some.budgets.tolist() == [1, 2]


def test_no_samples_make_no_parts_no_stacks_and_no_picks() -> None:
    parts = Parts.of_classes(make_samples(3), np.empty(0, np.int64), share=0.5)
    assert (len(parts), list(parts.stacks()), len(parts.split(4))) == (0, [], 0)
    assert len(Picks.joined([]).places) == 0


@pytest.mark.parametrize("budget", [0, 4])
def test_a_budget_that_cannot_be_met(budget: int) -> None:
    with pytest.raises(WrongUse, match="at least one sample and at most all"):
        Parts.whole(3, budget)


@pytest.mark.parametrize("stretch", [1, 7, 50, 10**6])
def test_stretches_hold_every_part_once_and_in_order(stretch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.select.parts.STRETCH", stretch)
    sizes = np.array([3, 9, 1, 20, 2, 2])
    parts = Parts(np.random.default_rng(0).permutation(37), sizes, np.ones(6, np.int64))
    found = list(parts.stretches())
    assert [run for some in found for run in runs(some)] == runs(parts)
    assert len(found) == {1: 6, 7: 4, 50: 1, 10**6: 1}[stretch]
    assert not list(parts.where(np.zeros(6, np.bool_)).stretches())
