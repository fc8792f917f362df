"""What is held, in columns: a slot for each held sample, and for every sample of the dataset its slot."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Slots = NDArray[np.int64]

MEMORY = -1
"""The drawer of what is not on disk."""
OVERHEAD = 64
"""Bytes that an entry takes beside its own, in memory or on disk."""
_LEAST = 256
_COLUMNS = ("positions", "sizes", "drawers", "rows")


class Table:
    """Held samples by position. Whoever changes it holds a lock; to look at it needs none.

    `positions` says whose each slot is, -1 for nobody's; `sizes` are bytes that it takes. On disk it lies in
    a drawer, at a row; in memory in `entries`. `admitted` and `evicted` only grow.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._free: list[int] = []
        self.entries: list[bytes | None] = []
        self.positions, self.sizes, self.rows = np.full((3, _LEAST), -1, np.int64)
        self.drawers = np.full(_LEAST, MEMORY, np.int32)
        self.count = self.memory_bytes = self.admitted = self.evicted = 0

    @cached_property
    def _slots(self) -> NDArray[np.int32]:
        """Slots and 1 by position, 0 for none. Memory is taken as it is written to."""
        return np.zeros(self._samples, np.int32)

    def find(self, positions: Positions) -> Slots:
        """The slot of each, -1 where it is not held."""
        if not self.count:
            return np.full(len(positions), -1, np.int64)
        slots: Slots = self._slots[positions].astype(np.int64) - 1
        return slots

    def held(self) -> Slots:
        """All slots that are somebody's."""
        return np.flatnonzero(self.positions[: len(self.entries)] >= 0)

    def in_memory(self, slots: Slots) -> Slots:
        found: Slots = slots[self.drawers[slots] == MEMORY]
        return found

    def on_disk(self, slots: Slots) -> Slots:
        found: Slots = slots[self.drawers[slots] != MEMORY]
        return found

    def in_drawer(self, number: int) -> Slots:
        slots = self.held()
        found: Slots = slots[self.drawers[slots] == number]
        return found

    def add(self, position: int, entry: bytes) -> None:
        """Hold a sample in memory that is not held yet."""
        slot = self._free.pop() if self._free else self._extend(1).start
        self.entries[slot] = entry
        self._fill(slot, position, len(entry), MEMORY, -1)
        self.memory_bytes += len(entry) + OVERHEAD
        self.count += 1
        self.admitted += 1

    def add_on_disk(self, positions: Positions, sizes: Slots, drawer: int, rows: Slots) -> None:
        """Hold samples that are not held yet, whose entries lie at these rows of a drawer."""
        free = [self._free.pop() for _ in range(min(len(positions), len(self._free)))]
        slots = np.array([*free, *self._extend(len(positions) - len(free))], np.int64)
        self._fill(slots, positions, sizes, drawer, rows)
        self.count += len(slots)
        self.admitted += len(slots)

    def move(self, slots: Slots, drawer: int, rows: Slots) -> None:
        """They lie elsewhere on disk from now on."""
        self.drawers[slots], self.rows[slots] = drawer, rows

    def remove(self, slots: Slots) -> None:
        self.memory_bytes -= int(self.sizes[self.in_memory(slots)].sum())
        self._slots[self.positions[slots]] = 0
        self.positions[slots] = -1
        for slot in slots.tolist():
            self.entries[slot] = None
            self._free.append(slot)
        self.count -= len(slots)
        self.evicted += len(slots)

    def _fill(self, slots: Any, positions: Any, sizes: Any, drawer: int, rows: Any) -> None:
        self.sizes[slots], self.drawers[slots], self.rows[slots] = sizes + OVERHEAD, drawer, rows
        self.positions[slots] = positions
        self._slots[positions] = slots + 1

    def _extend(self, count: int) -> range:
        """New slots."""
        begin, end = len(self.entries), len(self.entries) + count
        if end > len(self.positions):
            for name in _COLUMNS:
                column = getattr(self, name)
                more = np.full(max(end, 2 * len(column)) - len(column), -1, column.dtype)
                setattr(self, name, np.concatenate([column, more]))
        self.entries += [None] * count
        return range(begin, end)
