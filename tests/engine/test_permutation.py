"""Shuffles are bijections, and any slice of one is the slice of the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.permutation import BlockShuffled, Identity, Shuffled

SIZES = [1, 2, 5, 1000, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 100_003, 1 << 18]


@pytest.mark.parametrize("count", SIZES)
def test_shuffle_is_a_bijection(count: int) -> None:
    taken = Shuffled(count, key=7).take(0, count)
    assert np.array_equal(np.sort(taken), np.arange(count))


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([40, 70_000]), st.data())
def test_a_slice_is_the_slice_of_the_whole(count: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, min(count, start + 500)))
    shuffled = Shuffled(count, key=11)
    assert np.array_equal(shuffled.take(start, stop), shuffled.take(0, count)[start:stop])


@pytest.mark.parametrize("count", [50, 70_000])
def test_other_keys_give_other_shuffles(count: int) -> None:
    assert not np.array_equal(Shuffled(count, 1).take(0, 50), Shuffled(count, 2).take(0, 50))


def test_small_shuffles_are_even() -> None:
    """Every one of the 120 orders of five comes about equally often."""
    orders = [
        tuple(Shuffled(5, key).take(0, 5)) for key in np.random.default_rng(0).integers(0, 2**63, 12_000)
    ]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 120
    assert ((counts - 100) ** 2 / 100).sum() / 119 < 1.5


def test_large_shuffles_are_even() -> None:
    """Where a place goes is uniform over keys."""
    count = 1 << 17
    ends = np.array([Shuffled(count, key).take(12_345, 12_346)[0] for key in range(4000)])
    counts = np.histogram(ends, bins=16, range=(0, count))[0]
    assert ((counts - 250) ** 2 / 250).sum() / 15 < 2.2


def test_identity_counts() -> None:
    assert Identity(9).take(3, 6).tolist() == [3, 4, 5]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 9), st.integers(0, 1000))
def test_block_shuffle_is_a_bijection_that_stays_in_windows(
    lengths: list[int], window: int, key: int
) -> None:
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64)
    count = sum(lengths)
    shuffled = BlockShuffled(count, key, starts, window)
    taken = shuffled.take(0, count)
    assert np.array_equal(np.sort(taken), np.arange(count))
    middle = count // 2
    assert np.array_equal(np.concatenate((shuffled.take(0, middle), shuffled.take(middle, count))), taken)
    blocks = np.searchsorted(starts, taken, side="right")
    for block in np.unique(blocks):
        places = np.flatnonzero(blocks == block)
        between = np.unique(blocks[places[0] : places[-1] + 1])
        assert len(between) <= window
