"""The samples that a trainer holds: what is worth it, where it lies, and what goes when room is needed."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.data.index import Index
from headwater.engine.cache.disk import FILES, Disk
from headwater.engine.cache.lengths import Lengths
from headwater.engine.cache.settings import Cache
from headwater.engine.cache.shelf import Shelf
from headwater.engine.cache.table import MEMORY, OVERHEAD, Positions, Slots, Table
from headwater.engine.cache.worth import Marks, Worth
from headwater.engine.chain import Chain
from headwater.engine.drawer import Drawer


@dataclass(frozen=True)
class Holdings:
    """What a cache holds now, and what it has taken and let go of so far."""

    samples: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    """Of the files, also for what in them is no longer worth its room."""
    admitted: int = 0
    evicted: int = 0


@dataclass(frozen=True, eq=False)
class Look:
    """What there is of some samples: an entry, or a drawer and a row; and which others are wanted."""

    entries: Sequence[bytes | None]
    drawers: Sequence[tuple[Drawer, int] | None]
    wanted: Marks


class SampleCache:
    """Entries of samples within bounds of bytes, in memory and on disk. Safe to use from many threads.

    A sample is worth its room by its value over its bytes. `value` says what a hit on each is worth; all are
    worth the same until then. Of the highest, as many as fit are admitted; what is no longer among them goes
    when room is needed. Nothing is held before the first `begin`.
    """

    def __init__(
        self, settings: Cache, index: Index, chain: Chain, *, positions: Positions | None = None
    ) -> None:
        """`positions` are those that will ever be asked for, None: all of the index."""
        self._settings, self._index, self.chain = settings, index, chain
        self._lock = threading.Lock()
        self._table = Table(len(index))
        self._worth = Worth(index, self._table, positions)
        self._goners: deque[tuple[int, int]] = deque()  # slot and position, from the least worth on
        self._leaving = 0  # bytes of these
        self._shelf: Shelf | None = None
        self.lengths = Lengths()
        """What ways make of files, as far as this cache has seen it."""

    @property
    def steady(self) -> int:
        """After at most so many steps a sample is the same in every epoch, and may be held."""
        return self.chain.pipeline.steady_prefix

    @cached_property
    def kind(self) -> str:
        """What tells apart images that other steps, libraries or limits have made."""
        first = self.chain.pipeline.cut(self.steady)[0]
        content = msgspec.json.encode([first.hash, self.chain.limits])
        return hashlib.blake2b(content, digest_size=12).hexdigest()

    def value(self, importance: NDArray[np.floating[Any]] | None) -> None:
        """What a hit on each sample of the index is worth from the next epoch on; None: all the same.

        What is 0 or NaN is not worth holding. Raises `WrongUse` unless there is a number for each.
        """
        self._worth.set(importance)

    def begin(self) -> None:
        """An epoch begins: find what is worth holding, if anything has changed."""
        if self._settings.disk_bytes and self._shelf is None:
            self._shelf = self._open()
        shelf = self._shelf
        room = self._settings.memory_bytes + (0 if shelf is None else shelf.bound)
        if not self._worth.reckon(room):
            return
        with self._lock:
            slots = self._table.held()
            keys, _ = self._worth.keys(self._table.positions[slots])
            reached = self._worth.reached(keys)
            order = np.argsort(keys[~reached], kind="stable")
            self._doom(self._table.in_memory(slots[~reached][order]))
            if shelf is not None:
                shelf.survey(self._table.on_disk(slots[reached]))

    def contains(self, positions: Positions) -> Marks:
        """Which of these are held."""
        return self._table.find(positions) >= 0

    def wants(self, positions: Positions) -> Marks:
        """Which of these are worth holding, whether they are held or not."""
        return self._worth.reached(self._worth.keys(positions)[0])

    def holdings(self) -> Holdings:
        table, disk = self._table, 0 if self._shelf is None else self._shelf.nbytes
        return Holdings(table.count, table.memory_bytes, disk, table.admitted, table.evicted)

    def look(self, positions: Positions) -> Look:
        """What is held of these, and which of the others there is a wish, and room, for."""
        keys, sizes = self._worth.keys(positions)
        with self._lock:
            slots = self._table.find(positions)
            entries = [self._table.entries[slot] if slot >= 0 else None for slot in slots.tolist()]
            drawers = [self._drawer_at(slot) if slot >= 0 else None for slot in slots.tolist()]
            room = self._room()
        wanted = self._worth.reached(keys) & (slots < 0)
        wanted &= np.cumsum(np.where(wanted, sizes, 0.0)) <= room
        return Look(entries, drawers, wanted)

    def admit(self, positions: Positions, entries: Sequence[bytes], kinds: Sequence[str]) -> None:
        """Hold entries as far as there is room. A kind is `FILES`, or that of images."""
        later: dict[str, list[int]] = {}
        _, places = np.unique(positions, return_index=True)
        taken = []
        with self._lock:
            for place in places[~self.contains(positions[places])].tolist():
                if self._take(int(positions[place]), entries[place]):
                    taken.append(place)
                else:
                    later.setdefault(kinds[place], []).append(place)
            self._worth.learn(positions[taken], sum(len(entries[place]) for place in taken))
        for kind, left in later.items():
            if self._shelf is not None:
                self._shelf.put(kind, positions[left], [entries[place] for place in left])

    def forget(self, positions: Positions) -> None:
        """Let go of entries that turned out to be damaged."""
        with self._lock:
            slots = self._table.find(positions)
            self._table.remove(slots[slots >= 0])

    def close(self) -> None:
        """Let go of the folder on disk, for the next one."""
        if self._shelf is not None:
            self._shelf.close()

    def _open(self) -> Shelf:
        settings, kinds = self._settings, (FILES, self.kind)
        place, most, version = settings.place, settings.disk_bytes, self._index.version
        disk = Disk(place, most_bytes=most, dataset=version, kinds=kinds)
        return Shelf(disk, self._index, self._table, worth=self._worth, lock=self._lock)

    def _doom(self, slots: Slots) -> None:
        """These go next, in this order."""
        owners = self._table.positions[slots]
        self._goners = deque(zip(slots.tolist(), owners.tolist(), strict=True))
        self._leaving = int(self._table.sizes[slots].sum())

    def _room(self) -> int:
        """Bytes that may still be taken, with those of what would go."""
        room = self._settings.memory_bytes - self._table.memory_bytes + self._leaving
        return room + (0 if self._shelf is None else self._shelf.room)

    def _take(self, position: int, entry: bytes) -> bool:
        """Into memory, if there is room or can be made."""
        size, most = len(entry) + OVERHEAD, self._settings.memory_bytes
        while self._goners and size <= most < self._table.memory_bytes + size:
            slot, owner = self._goners.popleft()
            if self._table.positions[slot] == owner and self._table.drawers[slot] == MEMORY:
                self._leaving -= int(self._table.sizes[slot])
                self._table.remove(np.array([slot]))
        if self._table.memory_bytes + size > most:
            return False
        self._table.add(position, entry)
        return True

    def _drawer_at(self, slot: int) -> tuple[Drawer, int] | None:
        number = int(self._table.drawers[slot])
        if number == MEMORY or self._shelf is None:
            return None
        return self._shelf.drawer(number), int(self._table.rows[slot])
