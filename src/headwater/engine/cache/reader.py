"""Reads through a cache: what is held is not asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.fieldrows import encode_fields
from headwater.engine.cache.cache import Look, SampleCache
from headwater.engine.cache.disk import FILES
from headwater.engine.cache.entry import Entry, pack, unpack
from headwater.engine.drawer import Drawer
from headwater.engine.fetching import Costs, Fetched, Positions, Reader, Wanted
from headwater.engine.meter import Meter
from headwater.errors import SampleCorrupt, SampleTooLarge
from headwater.plan.offload import Offload

Places = NDArray[np.intp]
Marks = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Forms:
    """The ways of a reader: those that make the same of a sample in every epoch, and that of the file.

    What a store makes of a sample may be held if none of the steps that made it draws, because what is drawn
    is another in the next epoch. A sample that is to be held is asked for in that form which takes the fewest
    bytes; while nothing is known of the one that is planned, in that, or as a file if it cannot be held.
    """

    ways: tuple[Offload, ...]
    steady: Marks
    file: int

    @classmethod
    def of(cls, ways: Sequence[Offload], steady_prefix: int) -> Forms:
        file = Offload(0)
        listed = tuple(ways) if file in ways else (*ways, file)
        steady = np.array([way.cut <= steady_prefix for way in listed], np.bool_)
        return cls(listed, steady, listed.index(file))

    def ask(
        self, ways: NDArray[np.uint8] | None, wanted: Marks, lengths: NDArray[np.float64]
    ) -> NDArray[np.uint8] | None:
        """The ways to ask for: those that were asked for, but of what is to be held the cheapest to hold.

        `lengths` are bytes that each way will make of each sample, a row for each way; NaN is not known.
        """
        asked = np.zeros(len(wanted), np.uint8) if ways is None else ways
        chosen = np.where(wanted, self._cheapest(asked, lengths), asked)
        return ways if (chosen == asked).all() else chosen

    def _cheapest(self, asked: NDArray[np.uint8], lengths: NDArray[np.float64]) -> NDArray[np.uint8]:
        table = np.where(self.steady[:, None] & ~np.isnan(lengths), lengths, np.inf)
        every = np.arange(len(asked))
        least = table.argmin(axis=0)
        best = np.where(np.isfinite(table[least, every]), least, self.file)
        stays = self.steady[asked] & (
            np.isnan(lengths[asked, every]) | (table[asked, every] <= table[best, every])
        )
        return np.where(stays, asked, best).astype(np.uint8)


class CachedReader:
    """A reader that asks another one for what a cache does not hold, and gives the cache what it wants.

    Values are the same either way. A held sample moves no bytes; the CPU to open it is in its costs.
    """

    def __init__(
        self,
        make: Callable[[Sequence[Offload]], Reader],
        ways: Sequence[Offload],
        cache: SampleCache,
        meter: Meter,
    ) -> None:
        """`make` gives the other reader, for these ways and that of the file."""
        self._forms = Forms.of(ways, cache.steady)
        self._inner = make(self._forms.ways if any(way.cut for way in ways) else ways)
        self._cache, self._meter = cache, meter
        cache.begin()

    def sizes(self, positions: Positions) -> NDArray[np.int64]:
        return self._inner.sizes(positions)

    def key(self, position: int) -> str:
        return self._inner.key(position)

    def abandon(self) -> None:
        self._inner.abandon()

    def fetch(self, wanted: Wanted) -> Fetched:
        look = self._cache.look(wanted.positions)
        hits, seconds = self._open(look, wanted.positions)
        missed = np.array([place for place in range(len(wanted.ids)) if place not in hits], np.intp)
        self._meter.count(cache_hits=len(hits), cache_misses=len(missed))
        found = self._fetch(wanted.take(missed), look.wanted[missed]) if len(missed) else Fetched([])
        return _join(len(wanted.ids), hits, seconds, missed=missed, found=found)

    def _fetch(self, asked: Wanted, wanted: Marks) -> Fetched:
        """From the other reader; what is wanted of it is given to the cache."""
        files, ways = self._inner.sizes(asked.positions), asked.ways
        if wanted.any():
            known = [self._cache.lengths.predict(way, files) for way in self._forms.ways]
            ways = self._forms.ask(ways, wanted, np.stack(known))
        found = self._inner.fetch(replace(asked, ways=ways, packed=bool(wanted.any())))
        self._learn(np.zeros(len(files), np.uint8) if ways is None else ways, files, found)
        self._offer(asked.positions, found, wanted)
        return found

    def _learn(self, ways: NDArray[np.uint8], files: NDArray[np.int64], found: Fetched) -> None:
        """What those ways made of files that were gone."""
        if found.done is None:
            return
        made = np.zeros(len(files), np.int64) if found.costs is None else found.costs.bytes.copy()
        for place, packed in found.packed.items():
            made[place] = len(packed.payload)
        for number in np.unique(ways[found.done > 0]).tolist():
            way = self._forms.ways[number]
            came = (ways == number) & (found.done == way.cut) & (files > 0) & (made > 0)
            if way.cut and came.any():
                self._cache.lengths.learn(way, files[came], made[came])

    def _open(self, look: Look, positions: Positions) -> tuple[dict[int, Entry], NDArray[np.float32]]:
        """The held samples by place, and CPU seconds that opening each took; a damaged one is wanted anew."""
        hits, seconds = {}, np.zeros(len(positions), np.float32)
        damaged = []
        for place, entry in _entries(look).items():
            begun = time.thread_time()
            try:
                if entry is None:
                    raise SampleCorrupt("it was altered on disk")
                hits[place] = unpack(entry, self._cache.chain.limits)
            except (SampleCorrupt, SampleTooLarge):
                damaged.append(place)
            seconds[place] = time.thread_time() - begun
        if damaged:
            self._cache.forget(positions[damaged])
            look.wanted[damaged] = True
        return hits, seconds

    def _offer(self, positions: Positions, found: Fetched, wanted: Marks) -> None:
        """Give the cache what it wants to hold, of what came in a form that it can."""
        made = {place: self._made(found, place) for place in np.flatnonzero(wanted).tolist()}
        entries = {place: entry for place, entry in made.items() if entry is not None}
        if entries:
            kinds = [FILES if _done(found, place) == 0 else self._cache.kind for place in entries]
            self._cache.admit(positions[list(entries)], list(entries.values()), kinds)

    def _made(self, found: Fetched, place: int) -> bytes | None:
        """The entry of a sample; None if it failed, or came in a form that is only for this epoch."""
        done = _done(found, place)
        if place in found.failed or done > self._cache.steady:
            return None
        try:
            fields = encode_fields(found.fields, place) if found.fields else b""
        except SampleCorrupt:
            return None
        if not done:
            return pack(found.values[place], fields=fields)
        if place not in found.packed:
            return None
        packed = found.packed[place]
        return pack(packed.payload, done=done, packing=packed.packing, fields=fields)


def _done(found: Fetched, place: int) -> int:
    return 0 if found.done is None else int(found.done[place])


def _entries(look: Look) -> dict[int, bytes | None]:
    """The held entries by place, those on disk read drawer by drawer; None for one that is damaged."""
    found: dict[int, bytes | None] = {}
    drawers: dict[Drawer, list[tuple[int, int]]] = {}
    for place, (entry, at) in enumerate(zip(look.entries, look.drawers, strict=True)):
        if at is not None:
            drawers.setdefault(at[0], []).append((place, at[1]))
        elif entry is not None:
            found[place] = entry
    for drawer, members in drawers.items():
        copies = drawer.copy(np.array([row for _, row in members], np.int64))
        found |= {place: copy for (place, _), copy in zip(members, copies, strict=True)}
    return found


def _join(
    count: int, hits: Mapping[int, Entry], seconds: NDArray[np.float32], *, missed: Places, found: Fetched
) -> Fetched:
    """Hits, and what was found of the missed, in order."""
    where, places = missed.tolist(), list(hits)
    values: list[Any] = [None] * count
    done, held, costs = np.zeros(count, np.uint8), np.zeros(count, np.bool_), Costs.nothing(count)
    for place, entry in hits.items():
        values[place], done[place] = entry.value, entry.done
    for place, value in zip(where, found.values, strict=True):
        values[place] = value
    done[missed] = 0 if found.done is None else found.done
    costs.trainer_seconds[:] = seconds
    costs.put(missed, _costs(found))
    held[places] = True
    return Fetched(
        values,
        _join_fields(count, hits, where, found.fields),
        {where[place]: error for place, error in found.failed.items()},
        done if done.any() else None,
        found.bytes_moved,
        costs,
        held=held,
    )


def _costs(found: Fetched) -> Costs:
    """Those that the reader told; of files it need not tell any."""
    if found.costs is not None:
        return found.costs
    costs = Costs.nothing(len(found.values))
    costs.bytes[:] = [0 if value is None else len(value) for value in found.values]
    return costs


def _join_fields(
    count: int, hits: Mapping[int, Entry], where: Sequence[int], fetched: Mapping[str, Sequence[object]]
) -> dict[str, list[object]]:
    names = {*fetched, *(name for entry in hits.values() for name in entry.fields)}
    joined: dict[str, list[object]] = {name: [None] * count for name in sorted(names)}
    for place, entry in hits.items():
        for name, value in entry.fields.items():
            joined[name][place] = value
    for name, column in fetched.items():
        for place, value in zip(where, column, strict=True):
            joined[name][place] = value
    return joined
