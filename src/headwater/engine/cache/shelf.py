"""Which held samples lie on disk: what is put there, and what becomes of drawers that are worth little.

A drawer is only ever written at its end. Where half of one is no longer worth its room, the rest is moved,
and the drawer goes: so for every byte that is gained at most one is written again.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections import deque
from collections.abc import Sequence

import numpy as np

from headwater.data.index import Index
from headwater.engine.cache.disk import Disk
from headwater.engine.cache.table import OVERHEAD, Positions, Slots, Table
from headwater.engine.cache.worth import Worth
from headwater.engine.drawer import Drawer

log = logging.getLogger("headwater")

_MOVED = 64  # entries that are moved at a time


class Shelf:
    """Entries on disk, as the table has them. `lock` is that of the table; files are touched without it."""

    def __init__(self, disk: Disk, index: Index, table: Table, *, worth: Worth, lock: threading.Lock) -> None:
        self._disk, self._index, self._table, self._worth = disk, index, table, worth
        self._lock, self._cleaning = lock, threading.Lock()
        self._wasted: deque[tuple[int, int]] = deque()  # drawers of little worth, and bytes to be gained
        for number, drawer in disk.drawers():
            self._recall(number, drawer)
        if table.count:
            log.info("%d samples are held in %s", table.count, disk.folder)
        table.admitted = table.evicted = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return self._disk.nbytes

    @property
    def bound(self) -> int:
        """Bytes that samples may take."""
        return self._disk.nbytes if self._disk.stopped else self._disk.most_bytes

    @property
    def room(self) -> int:
        """Bytes that may be added, with those to be gained."""
        return 0 if self._disk.stopped else self._disk.room + sum(size for _, size in self._wasted)

    def drawer(self, number: int) -> Drawer:
        return self._disk.drawer(number)

    def close(self) -> None:
        self._disk.close()

    def survey(self, worth: Slots) -> None:
        """Find drawers of which half is not worth its room; these slots are."""
        table = self._table
        kept = np.bincount(table.drawers[worth], weights=table.sizes[worth]) if len(worth) else np.zeros(0)
        found = []
        for number, drawer in self._disk.drawers():
            gain = drawer.nbytes - (int(kept[number]) if number < len(kept) else 0)
            if 2 * gain >= drawer.nbytes:
                found.append((number, gain))
        self._wasted = deque(sorted(found, key=lambda entry: -entry[1]))

    def put(self, kind: str, positions: Positions, entries: Sequence[bytes]) -> None:
        """Hold as many of them as there is room for."""
        ends = np.cumsum([len(entry) + OVERHEAD for entry in entries])
        while ends[-1] > self._disk.room and self._clean():
            pass
        fit = int(np.searchsorted(ends, self._disk.room, side="right"))
        found = self._disk.add(kind, *self._rows(positions[:fit]), entries[:fit]) if fit else None
        if found is None:
            return
        number, rows = found
        with self._lock:
            if number in self._disk:  # it may have been emptied meanwhile
                (new,) = np.nonzero(self._table.find(positions[:fit]) < 0)
                sizes = np.diff(ends, prepend=0)[new] - OVERHEAD
                self._table.add_on_disk(positions[new], sizes, number, rows[new])
                self._worth.learn(positions[new], int(sizes.sum()))

    def _rows(self, positions: Positions) -> tuple[Positions, Positions]:
        return self._index.ids[positions], self._index.sizes[positions]

    def _recall(self, number: int, drawer: Drawer) -> None:
        """What an earlier run has left; of several entries of a sample the last counts."""
        ids, rows = drawer.all()
        positions, places = self._index.position_of(ids), rows.astype(np.int64)
        slots = self._table.find(positions)
        self._table.remove(slots[slots >= 0])
        self._table.add_on_disk(positions, drawer.lengths(places), number, places)

    def _clean(self) -> bool:
        """Empty the drawer that is worth least; False if there is none, or somebody else is at it."""
        if not self._cleaning.acquire(blocking=False):
            return False
        try:
            with self._lock:
                number = self._pick()
                if number is None:
                    return False
                slots = self._table.in_drawer(number)
                worth = self._worth.reached(self._worth.keys(self._table.positions[slots])[0])
                self._table.remove(slots[~worth])
            self._empty(number, slots[worth])
            return True
        finally:
            self._cleaning.release()

    def _pick(self) -> int | None:
        """The next drawer to be emptied; some have been since they were found."""
        while self._wasted:
            number, _ = self._wasted.popleft()
            if number in self._disk:
                return number
        return None

    def _empty(self, number: int, slots: Slots) -> None:
        """Move these out of a drawer, and drop it with what else is in it."""
        drawer = self._disk.drawer(number)
        self._disk.seal(number)
        for begin in range(0, len(slots), _MOVED):
            self._move(number, drawer, slots[begin : begin + _MOVED])
        with self._lock:
            self._table.remove(self._table.in_drawer(number))
            folder = self._disk.drop(number)
        shutil.rmtree(folder, ignore_errors=True)

    def _move(self, number: int, drawer: Drawer, slots: Slots) -> None:
        table, disk = self._table, self._disk
        positions, found = table.positions[slots], drawer.copy(table.rows[slots])
        sound = np.array([entry is not None for entry in found], np.bool_)
        entries = [entry for entry in found if entry is not None]
        slots, positions = slots[sound], positions[sound]
        moved = disk.add(disk.kind_of(number), *self._rows(positions), entries, moving=True)
        if moved is not None:
            with self._lock:  # meanwhile a slot may have become another's
                same = (table.positions[slots] == positions) & (table.drawers[slots] == number)
                table.move(slots[same], moved[0], moved[1][same])
