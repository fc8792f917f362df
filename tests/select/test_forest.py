"""Groups are what pairs connect, in whatever order and however many they come."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headwater.select.forest import Forest

COUNT = 12
pairs = st.lists(st.tuples(st.integers(0, COUNT - 1), st.integers(0, COUNT - 1)), max_size=20)


def walk(joined: list[tuple[int, int]]) -> list[int]:
    """The lowest place that can be reached from each."""
    firsts = list(range(COUNT))
    for _ in range(COUNT):
        for left, right in joined:
            firsts[left] = firsts[right] = min(firsts[left], firsts[right])
    return firsts


@given(pairs, st.integers(1, 5))
def test_every_sample_knows_the_first_that_it_is_connected_with(
    joined: list[tuple[int, int]], at_once: int
) -> None:
    forest = Forest(COUNT)
    for begin in range(0, len(joined), at_once):
        left, right = np.array(joined[begin : begin + at_once]).T
        forest.join(left, right)
    assert forest.firsts.tolist() == walk(joined)
    apart = forest.apart(np.arange(COUNT - 1), np.arange(1, COUNT))
    assert apart.tolist() == [
        one != other for one, other in zip(walk(joined), walk(joined)[1:], strict=False)
    ]


def test_a_long_chain_and_a_wide_star_are_one_group() -> None:
    count = 100_000
    chain, star = Forest(count), Forest(count)
    chain.join(np.arange(1, count), np.arange(count - 1))
    star.join(np.full(count - 1, count - 1), np.arange(count - 1))
    assert not chain.firsts.any()
    assert not star.firsts.any()


def test_nothing_joined_is_nothing_changed() -> None:
    forest = Forest(3)
    forest.join(np.empty(0, np.int64), np.empty(0, np.int64))
    assert forest.firsts.tolist() == [0, 1, 2]
    assert Forest(0).firsts.tolist() == []
