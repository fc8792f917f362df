"""Reading in bulk: all or each by itself, and only what concerns one sample is held against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from headwater.engine.fetching import fetch_files
from headwater.errors import DatasetStale, ForkedUse, HeadwaterError, Refused, SampleCorrupt, StoreLost


class Numbers:
    """Files that say their position; some cannot be read."""

    def __init__(
        self, bad: Mapping[int, Exception], bad_fields: Mapping[int, Exception] | None = None
    ) -> None:
        self.bad, self.bad_fields = bad, bad_fields or {}
        self.reads = 0

    def read(self, positions: np.ndarray) -> Sequence[bytes]:
        self.reads += 1
        for position in positions.tolist():
            if position in self.bad:
                raise self.bad[position]
        return [b"%d" % position for position in positions]

    def read_fields(self, positions: np.ndarray) -> Mapping[str, Sequence[object]]:
        for position in positions.tolist():
            if position in self.bad_fields:
                raise self.bad_fields[position]
        return {"twice": [2 * position for position in positions.tolist()]}


WANTED = np.array([7, 3, 30, 4])


def test_all_at_once() -> None:
    files = Numbers({})
    found = fetch_files(files, WANTED)
    assert list(found.values) == [b"7", b"3", b"30", b"4"]
    assert found.fields == {"twice": [14, 6, 60, 8]}
    assert (found.failed, found.done, found.bytes_moved, files.reads) == ({}, None, 5, 1)


@pytest.mark.parametrize("error", [SampleCorrupt("bad"), DatasetStale("gone"), OSError("disk")])
def test_one_that_fails_spares_the_others(error: Exception) -> None:
    files = Numbers({30: error})
    found = fetch_files(files, WANTED)
    assert list(found.values) == [b"7", b"3", None, b"4"]
    assert found.fields == {"twice": [14, 6, None, 8]}
    assert found.failed == {2: error}
    assert (found.bytes_moved, files.reads) == (3, 5)


def test_fields_that_cannot_be_read_fail_their_sample() -> None:
    error = SampleCorrupt("no json")
    found = fetch_files(Numbers({}, {3: error}), WANTED)
    assert found.failed == {1: error}
    assert list(found.values) == [b"7", None, b"30", b"4"]


def test_all_may_fail() -> None:
    errors = {position: SampleCorrupt(str(position)) for position in WANTED.tolist()}
    found = fetch_files(Numbers(errors), WANTED)
    assert list(found.values) == [None] * 4
    assert [str(found.failed[place]) for place in range(4)] == ["7", "3", "30", "4"]
    assert (found.fields, found.bytes_moved) == ({}, 0)


@pytest.mark.parametrize("error", [StoreLost("lost"), Refused("no"), ForkedUse("child")])
def test_what_concerns_all_is_raised_at_once(error: HeadwaterError) -> None:
    files = Numbers({30: error})
    with pytest.raises(type(error)):
        fetch_files(files, WANTED)
    assert files.reads == 1


@pytest.mark.parametrize("error", [MemoryError(), TypeError("a bug"), KeyboardInterrupt()])
def test_what_is_nobodys_fault_is_not_held_against_a_sample(error: BaseException) -> None:
    with pytest.raises(type(error)):
        fetch_files(Numbers({7: error}), WANTED)  # type: ignore[dict-item]


def test_none_wanted() -> None:
    assert list(fetch_files(Numbers({}), np.array([], np.int64)).values) == []
