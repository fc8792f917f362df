"""Step by step: who was in the batch, who of them goes, and who joins it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from headwater.train.replay.batches import NO_SLOTS, Batches, Epoch, Slots

Ids = NDArray[np.int64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Visit:
    """A step: rows of the features that were in its batch, of those that go, and of those that join."""

    number: int
    members: Rows | slice
    size: int
    leaving: Rows
    joining: Rows

    @property
    def now(self) -> int:
        """How many are in the batch after the change."""
        return self.size - len(self.leaving) + len(self.joining)

    @property
    def staying(self) -> int:
        """How many are in the batch before and after the change."""
        return self.size - len(self.leaving)

    @property
    def changed(self) -> bool:
        return bool(len(self.leaving) or len(self.joining))

    @property
    def remaining(self) -> Rows | slice:
        """Rows of all that are in the batch after the change."""
        if not self.changed:
            return self.members
        stay = self.stayers
        return np.concatenate([np.arange(self.staying) if isinstance(stay, slice) else stay, self.joining])

    @property
    def tail(self) -> bool:
        """Whether everybody is in the batch, and those who leave have the last rows."""
        leaving = self.leaving
        return isinstance(self.members, slice) and bool(leaving.min(initial=self.size) >= self.staying)

    @property
    def stayers(self) -> Rows | slice:
        """Rows of those who are in the batch before and after the change."""
        if self.tail:
            return slice(0, self.staying)
        before = np.arange(self.size) if isinstance(self.members, slice) else self.members
        return before[~np.isin(before, self.leaving)]


@dataclass(frozen=True, eq=False)
class Change:
    """What a request does to a run: slots whose samples go, ids and rows of samples that come."""

    leaving: Slots = field(default_factory=lambda: NO_SLOTS)
    joining: Ids = field(default_factory=lambda: NO_SLOTS)
    rows: Rows = field(default_factory=lambda: NO_SLOTS)


@dataclass(frozen=True, eq=False)
class Roster:
    """Who has each slot: a row of the features, -1 where nobody is any more, and an id.

    Slots from `batches.count` on are of samples that joined the run later.
    """

    batches: Batches
    missing: Slots
    ids: Ids
    rows: Rows

    def visits(self, change: Change) -> Iterator[Visit]:
        """All steps of the run, and what a change does to each."""
        walk = _Walk(self, change)
        for epoch in self.batches.divide(self.missing):
            yield from walk.whole(epoch) if epoch.whole else walk.batches(epoch)


@dataclass(frozen=True, eq=False)
class _Walk:
    roster: Roster
    change: Change

    def whole(self, epoch: Epoch) -> Iterator[Visit]:
        """The one batch of an epoch that is everything; it is the same in all of them."""
        yield replace(self._everything, number=epoch.first)

    def batches(self, epoch: Epoch) -> Iterator[Visit]:
        roster, change = self.roster, self.change
        order, bounds = epoch.order, epoch.bounds
        if self._holes:
            alive = roster.rows[order] >= 0
            bounds = np.concatenate([[0], np.cumsum(alive)])[bounds]
            order = order[alive]
        gone = np.flatnonzero(self._leaving[order])
        count, late_ones, late_going = len(epoch), self._late, self._late_leaving
        leaving = _Sorted(np.searchsorted(bounds, gone, side="right") - 1, roster.rows[order[gone]], count)
        late = _Sorted(epoch.join(roster.ids[late_ones]), roster.rows[late_ones], count)
        late_gone = _Sorted(epoch.join(roster.ids[late_going]), roster.rows[late_going], count)
        joining = _Sorted(epoch.join(change.joining), change.rows, count)
        rows, ends = roster.rows[order], bounds.tolist()
        for number in range(count):
            members = rows[ends[number] : ends[number + 1]]
            if len(late):
                members = np.concatenate([members, late.of(number)])
            going = leaving.of(number)
            if len(late_gone):
                going = np.concatenate([going, late_gone.of(number)])
            yield Visit(epoch.first + number, members, len(members), going, joining.of(number))

    @cached_property
    def _everything(self) -> Visit:
        roster, change = self.roster, self.change
        rows = roster.rows[roster.rows >= 0]
        straight = np.array_equal(np.sort(rows), np.arange(len(rows)))
        members = slice(0, len(rows)) if straight else rows
        leaving = roster.rows[change.leaving]
        return Visit(0, members, len(rows), leaving[leaving >= 0], change.rows)

    @cached_property
    def _holes(self) -> bool:
        return bool((self.roster.rows[: self.roster.batches.count] < 0).any())

    @cached_property
    def _leaving(self) -> NDArray[np.bool_]:
        mask = np.zeros(len(self.roster.rows), bool)
        mask[self.change.leaving] = True
        return mask

    @cached_property
    def _late(self) -> Slots:
        slots = np.arange(self.roster.batches.count, len(self.roster.rows))
        return slots[self.roster.rows[slots] >= 0]

    @cached_property
    def _late_leaving(self) -> Slots:
        return self._late[self._leaving[self._late]]


class _Sorted:
    """Rows by the batch of so many that they are in, -1 for none."""

    def __init__(self, batches: NDArray[np.int64], rows: Rows, count: int) -> None:
        order = np.argsort(batches, kind="stable")
        self._rows = rows[order]
        self._bounds = np.searchsorted(batches[order], np.arange(count + 1)).tolist()

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, batch: int) -> Rows:
        return self._rows[self._bounds[batch] : self._bounds[batch + 1]]
