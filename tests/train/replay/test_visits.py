"""Who is in each batch, who goes and who comes."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.train.replay.batches import NO_SLOTS, Batches, FullBatch, Minibatches, OverlappedRuns
from headwater.train.replay.visits import Change, Roster, Visit

COUNT = 60
IDS = np.arange(COUNT, dtype=np.int64) * 7 + 1
KINDS: list[Batches] = [FullBatch(COUNT, 3), Minibatches(COUNT, 7, 4), OverlappedRuns((40, 20), 8, 4)]
pytestmark = pytest.mark.parametrize("batches", KINDS, ids=lambda each: type(each).__name__)


def roster(batches: Batches, *, gone: list[int] = [], late: list[int] = []) -> Roster:  # noqa: B006
    """Rows are 1000 more than slots, so that nobody mistakes one for the other."""
    ids = np.concatenate([IDS, np.array(late, np.int64)])
    rows = 1000 + np.arange(len(ids))
    rows[gone] = -1
    return Roster(batches, NO_SLOTS, ids, rows)


def members(visit: Visit) -> list[int]:
    assert not isinstance(visit.members, slice)
    return sorted(visit.members.tolist())


def remaining(visit: Visit) -> list[int]:
    assert not isinstance(visit.remaining, slice)
    return sorted(visit.remaining.tolist())


def test_without_a_change_batches_are_those_of_the_run(batches: Batches) -> None:
    visits = iter(roster(batches).visits(Change()))
    for epoch in batches.divide():
        for begin, end in zip(epoch.bounds, epoch.bounds[1:], strict=False):
            visit = next(visits)
            assert members(visit) == sorted((1000 + epoch.order[begin:end]).tolist())
            assert not visit.changed
            assert visit.now == visit.size == end - begin
    assert next(visits, None) is None


def test_who_goes_is_found_in_the_right_batches(batches: Batches) -> None:
    gone = np.array([3, 11, 40])
    plain = list(roster(batches).visits(Change()))
    for visit, before in zip(roster(batches).visits(Change(leaving=gone)), plain, strict=True):
        assert visit.number == before.number
        assert members(visit) == members(before)
        assert sorted(visit.leaving.tolist()) == sorted(set(members(before)) & {1003, 1011, 1040})
        assert remaining(visit) == sorted(set(members(before)) - {1003, 1011, 1040})
        assert visit.now == len(remaining(visit))


def test_holes_stay_where_they_are(batches: Batches) -> None:
    """A request after another sees what one for both would leave."""
    both = roster(batches).visits(Change(leaving=np.array([3, 11])))
    second = roster(batches, gone=[3]).visits(Change(leaving=np.array([11])))
    for one, other in zip(both, second, strict=True):
        assert remaining(one) == remaining(other)


def test_who_came_with_an_earlier_request_is_where_it_was_put(batches: Batches) -> None:
    joining = np.array([901, 902], np.int64)
    first = list(roster(batches).visits(Change(joining=joining, rows=np.array([1060, 1061]))))
    later = list(roster(batches, late=[901, 902]).visits(Change(leaving=np.array([61]))))
    for one, other in zip(first, later, strict=True):
        assert remaining(one) == members(other)
        assert other.leaving.tolist() == ([1061] if 1061 in members(other) else [])
    assert sum(len(visit.joining) for visit in first) == sum(len(visit.members) for visit in later) - sum(
        len(visit.members) for visit in roster(batches).visits(Change())
    )
    assert any(len(visit.joining) for visit in first)
