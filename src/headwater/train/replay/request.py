"""A request: samples that are to go from a run, and samples that are to join it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import msgspec
import numpy as np

from headwater.errors import WrongUse
from headwater.train.replay.batches import FullBatch, OverlappedRuns
from headwater.train.replay.features import Features, Part
from headwater.train.replay.journal import Journal
from headwater.train.replay.naming import as_ids
from headwater.train.replay.objective import Parts
from headwater.train.replay.records import Header
from headwater.train.replay.visits import Change, Ids, Roster, Visit

GONE = -1
_MANY = 1 / 64
"""Where more than this share leaves, a copy of all rows is worth what it spares in each computed step."""


@dataclass(frozen=True, eq=False)
class Request:
    """What is asked of a journal; the roster and the change have rows of `data`."""

    journal: Journal
    data: Features
    roster: Roster
    change: Change

    @classmethod
    def make(cls, journal: Journal, remove: Iterable[int], add: Iterable[int]) -> Request:
        """Raises `WrongUse` for samples that are not there or are already, `JournalRefused` without rows."""
        leaving, joining = as_ids(remove, "remove"), as_ids(add, "add")
        if not len(leaving) and not len(joining):
            raise WrongUse("no samples to remove and none to add; name at least one")
        known = np.unique(journal.roster.ids[np.isin(journal.roster.ids, joining)])
        if len(known):
            raise WrongUse(f"{len(known):,} of the ids to add are in the run already, such as {known[0]}")
        if len(joining) and isinstance(journal.batches, OverlappedRuns) and journal.batches.variants > 1:
            raise WrongUse("samples cannot be added to a run with several variants of each; train again")
        change = Change(journal.slots_of(leaving), joining, journal.data.find(joining))
        made = cls(journal, journal.data, journal.roster, change)
        if made.size < 1:
            raise WrongUse("no sample would be left to train on; remove fewer")
        return made._arranged()

    @property
    def whole(self) -> bool:
        """Whether every step sees everything."""
        return isinstance(self.journal.batches, FullBatch)

    @property
    def many(self) -> bool:
        """Whether so many leave that the others are another problem."""
        return len(self.change.leaving) > _MANY * int((self.roster.rows >= 0).sum())

    @property
    def size(self) -> int:
        """How many rows are left."""
        gone = self.roster.rows[self.change.leaving]
        there = int((self.roster.rows >= 0).sum())
        return there - int((gone >= 0).sum()) + len(self.change.joining)

    @property
    def rows(self) -> int:
        """How many training again goes through, about."""
        batches = self.journal.batches
        return batches.seen * self.size // batches.count

    def parts_after(self, visit: Visit) -> Parts:
        """What is in the batch of a step after the change.

        With a full batch one copy of what is left is gone through each time, instead of a selection.
        """
        if self.whole:
            return self.left.parts(slice(0, visit.now))
        return self.data.parts(visit.remaining)

    @cached_property
    def left(self) -> Features:
        """A copy of all that is there after the change, one after the other."""
        rows = np.delete(self.roster.rows, self.change.leaving)
        return self.data.pick(np.concatenate([rows[rows >= 0], self.change.rows]))

    def some(self, count: int, *, staying: bool = False) -> Part:
        """So many of the samples that the run has seen, or of those that stay, from first to last."""
        rows = np.delete(self.roster.rows, self.change.leaving) if staying else self.roster.rows
        rows = rows[rows >= 0]
        places = np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64)
        return self.data.take(rows[places])

    def walk(self) -> tuple[int, Iterator[Visit]]:
        """The first step that sees a change, or the number of steps; and all steps."""
        visits, seen = self.roster.visits(self.change), []
        for visit in visits:
            seen.append(visit)
            if visit.changed:
                return visit.number, chain(seen, visits)
        return self.journal.steps, iter(seen)

    def header(self) -> Header:
        """Of the journal of the new run; who goes leaves no trace but a hole."""
        before = self.journal.file.header
        ids = np.concatenate([self._emptied(before.slots), self.change.joining])
        there = self.journal.data.find(ids[ids >= 0])
        version = self.journal.data.version(there)
        return msgspec.structs.replace(before, data=version, ids=ids.astype("<i8").tobytes())

    @property
    def targets(self) -> Ids | None:
        """What the journal of the new run has for the targets of its slots; None if the old one has none."""
        before = self.journal.file.targets
        if before is None:
            return None
        joined = np.asarray(self.data.targets[self.change.rows], np.int64)
        return np.concatenate([self._emptied(before), joined])

    def _emptied(self, column: Ids) -> Ids:
        """A number of each slot, -1 for those whose sample goes."""
        column = column.copy()
        column[self.change.leaving] = GONE
        return column

    def _arranged(self) -> Request:
        """With a full batch, rows one after the other need no gathering, step after step.

        Those of many who leave come last, so that the others are one after the other, too.
        """
        slots = np.flatnonzero(self.roster.rows >= 0)
        leaving = np.isin(slots, self.change.leaving)
        many = self.many
        straight = np.array_equal(self.roster.rows[slots], np.arange(len(slots)))
        if not self.whole or (straight and not many):
            return self
        if many:
            slots = np.concatenate([slots[~leaving], slots[leaving]])
        places = np.full(len(self.roster.rows), -1)
        places[slots] = np.arange(len(slots))
        joining = len(slots) + np.arange(len(self.change.rows))
        return Request(
            self.journal,
            self.data.pick(np.concatenate([self.roster.rows[slots], self.change.rows])),
            Roster(self.roster.batches, self.roster.missing, self.roster.ids, places),
            Change(self.change.leaving, self.change.joining, joining),
        )
