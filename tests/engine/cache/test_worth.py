"""What is worth holding: the highest values per byte, as many as fit, whatever the values are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headwater.data.index import Index
from headwater.engine.cache.entry import LENGTH
from headwater.engine.cache.table import OVERHEAD, Table
from headwater.engine.cache.worth import Doubles, Keys, Worth, least_key, rank
from headwater.errors import WrongUse

VALUES = st.floats(0, 100, width=32) | st.just(np.nan)


def chosen(values: object, sizes: object, room: float) -> NDArray[np.bool_]:
    """What is held of these samples, which are looked at three at a time."""
    values, sizes = np.asarray(values, np.float32), np.asarray(sizes, np.float64)
    keys = rank(values, sizes, np.arange(len(sizes)))

    def parts() -> Iterator[tuple[Keys, Doubles]]:
        for begin in range(0, len(keys), 3):
            yield keys[begin : begin + 3], sizes[begin : begin + 3]

    return keys >= np.uint64(least_key(parts, room))


def make_index(sizes: NDArray[np.int64]) -> Index:
    return Index.build([f"{number}.jpg" for number in range(len(sizes))], sizes)


@pytest.mark.parametrize("room", range(0, 7))
def test_of_equal_sizes_no_other_choice_is_worth_more(room: int) -> None:
    values = np.array([3.0, 0.5, 4.0, 1.0, 5.0, 0.25])
    held = chosen(values, np.full(6, 100), 100 * room)
    best = max(values[list(some)].sum() for some in combinations(range(6), room))
    assert values[held].sum() == best
    assert held.sum() == room


@given(
    st.lists(
        st.tuples(st.floats(0, 100, width=32) | st.just(np.nan), st.integers(1, 1000)),
        min_size=1,
        max_size=40,
    ),
    st.integers(0, 20_000),
)
def test_it_is_the_longest_row_of_the_densest_that_fits(samples: list[tuple[float, int]], room: int) -> None:
    values, sizes = np.array(samples, np.float64).T
    held = chosen(values, sizes, room)
    keys = rank(values.astype(np.float32), sizes, np.arange(len(sizes)))
    order = [place for place in np.argsort(keys)[::-1] if keys[place]]
    ends = np.cumsum(sizes[order])
    fit = order[: int(np.searchsorted(ends, room, side="right"))]
    assert sizes[held].sum() <= room
    # what is left out is less than a thousandth of the room
    assert set(np.flatnonzero(held)) <= set(fit)
    assert sizes[fit].sum() - sizes[held].sum() <= room / 1024


def test_small_ones_are_worth_more_where_hits_count_alike() -> None:
    assert chosen([1, 1, 1], [100, 10, 50], 70).tolist() == [False, True, True]


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_what_is_worth_nothing_is_not_held(value: float) -> None:
    assert chosen([value, 1, value], [1, 1, 1], 99).tolist() == [False, True, False]
    assert not chosen([value] * 4, [1] * 4, 99).any()


def test_no_bound_but_infinity() -> None:
    assert chosen([np.inf, 1, np.inf, 2], [1, 1, 2, 1], 3).tolist() == [True, False, True, False]


def test_equals_fill_the_room_too() -> None:
    """By a hash, so that they are spread over the dataset."""
    held = chosen(np.ones(20_000), np.full(20_000, 7), 7 * 5000)
    assert 5000 * 0.999 <= held.sum() <= 5000
    assert 2000 < held[:10_000].sum() < 3000


def test_keys_are_those_of_positions_and_not_of_their_neighbours() -> None:
    positions = np.array([5, 3, 9])
    values, sizes = np.array([1, 2, 3], np.float32), np.array([4.0, 5.0, 6.0])
    assert rank(values, sizes, positions)[1] == rank(values[1:2], sizes[1:2], positions[1:2])[0]


def test_only_candidates_take_room() -> None:
    index = make_index(np.full(10, 1000))
    worth = Worth(index, Table(10), np.array([7, 2]))
    assert worth.reckon(2 * (1000 + LENGTH + OVERHEAD))
    assert worth.reached(worth.keys(np.array([7, 2]))[0]).all()


def test_nothing_new_is_not_reckoned_again() -> None:
    index = make_index(np.full(100, 1000))
    worth = Worth(index, Table(100), None)
    assert worth.reckon(10_000)
    assert not worth.reckon(10_000)
    worth.set(np.ones(100, np.float32))
    assert worth.reckon(10_000)
    worth.learn(np.arange(40), 40 * 990)
    assert not worth.reckon(10_000)
    before = worth.reached(worth.keys(np.arange(100))[0]).sum()
    worth.learn(np.arange(100), 100 * 100)  # entries turn out to be much smaller than files
    assert worth.reckon(10_000)
    assert worth.reached(worth.keys(np.arange(100))[0]).sum() > 2 * before


def test_values_of_another_dataset_are_refused() -> None:
    with pytest.raises(WrongUse, match=r"shape \(9,\); \(10,\) is needed"):
        Worth(make_index(np.full(10, 1)), Table(10), None).set(np.ones(9, np.float32))
