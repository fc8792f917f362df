"""Where the rows of a request lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headwater.train.replay.batches import NO_SLOTS, FullBatch
from headwater.train.replay.journal import Journal
from headwater.train.replay.request import Request
from headwater.train.replay.visits import Change, Roster
from replays import COUNT, make_features, record

DATA = make_features()


@pytest.mark.parametrize(("leaving", "copied"), [(9, False), (10, True), (200, True)])
def test_many_who_leave_a_full_batch_come_last(tmp_path: Path, leaving: int, copied: bool) -> None:
    record(tmp_path / "a", DATA)
    gone = DATA.ids[7 : 7 + leaving]
    made = Request.make(Journal(tmp_path / "a", DATA), gone, ())
    (visit, *_) = list(made.walk()[1])
    assert made.many is copied
    assert (made.data is DATA) is not copied
    assert (visit.stayers == slice(0, COUNT - leaving)) if copied else len(visit.stayers) == COUNT - leaving
    assert made.data.ids[visit.leaving].tolist() == gone.tolist()
    assert visit.members == slice(0, COUNT)


def test_those_who_leave_last_are_the_tail_of_a_full_batch() -> None:
    made = Roster(FullBatch(6, 1), NO_SLOTS, np.arange(6), np.arange(6))
    for going, tail in (([4, 5], True), ([5, 3], False), ([0], False)):
        (visit,) = made.visits(Change(leaving=np.array(going)))
        assert visit.tail is tail
        stay = visit.stayers
        rows = list(range(6))[stay] if isinstance(stay, slice) else stay.tolist()
        assert rows == [each for each in range(6) if each not in visit.leaving.tolist()]
        assert visit.staying == len(rows)
        assert sorted(visit.remaining.tolist()) == rows  # type: ignore[union-attr]
