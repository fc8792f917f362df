"""Ids and their rows against a plain dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headwater.engine.places import Places

additions = st.lists(
    st.dictionaries(st.integers(0, 200), st.integers(0, 2**32 - 1), max_size=30), max_size=12
)


@given(additions)
def test_finds_what_was_added_last(additions: list[dict[int, int]]) -> None:
    places, expected = Places(), {}
    for added in additions:
        ids = np.array(list(added), np.int64)
        places.add(ids, np.array(list(added.values()), np.uint32))
        expected |= added
    wanted = np.arange(-1, 202)
    assert places.find(wanted).tolist() == [expected.get(id, -1) for id in wanted.tolist()]
    ids, rows = places.all()
    assert dict(zip(ids.tolist(), rows.tolist(), strict=True)) == expected
    assert ids.tolist() == sorted(expected)


def test_many_additions_and_more_than_a_tail_holds() -> None:
    rng = np.random.default_rng(0)
    ids = rng.permutation(40_000).astype(np.int64) * 7
    places = Places()
    for begin in range(0, len(ids), 500):
        rows = np.arange(begin, begin + 500, dtype=np.uint32)
        places.add(ids[begin : begin + 500], rows)
    np.testing.assert_array_equal(places.find(ids), np.arange(40_000))
    assert (places.find(ids + 1) == -1).all()
    assert len(places) == 40_000


def test_nothing_is_in_nothing() -> None:
    places = Places()
    assert places.find(np.array([1, 2])).tolist() == [-1, -1]
    assert len(places) == 0
