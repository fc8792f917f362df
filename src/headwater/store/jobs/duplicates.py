"""Groups of near-duplicates, found where the samples lie: hashes or features stay, and groups go out.

Of a part of a dataset hashes or features go out, for who has those of the other parts too: groups of parts do
not tell those of the whole, in which another sample may lead.

A class at a time, small ones together, because nothing is alike to what has another label: memory is that of
the largest class. What was made is kept, so a process that is killed begins anew, and comes to it soon.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.data.index import Index
from headwater.engine.budget import Gone
from headwater.engine.fingerprints import Fingerprinting
from headwater.engine.inference import Extraction, Failed
from headwater.errors import DatasetStale, WrongUse
from headwater.select.choosing import by_class
from headwater.select.duplicates import Groups, group_hashes, group_vectors
from headwater.store.features import Features
from headwater.store.fingerprints import Fingerprints
from headwater.store.jobs.pace import Pace, Turn
from headwater.store.jobs.record import Failing
from headwater.store.jobs.runner import Running
from headwater.store.jobs.selections import Kept, Selections

Ids = NDArray[np.int64]
Batch = tuple[Ids, NDArray[Any], tuple[Failed, ...]]
"""Positions with a row each, and those of which none could be made."""

BLOCK = 8192
"""Samples of the classes that are looked at together."""
ROWS = "rows"
"""The option of a job that hands out what tells samples apart."""
_BITS = 128
_REASON = 300


class Look(Protocol):
    """What tells samples apart."""

    def kept(self, positions: Ids) -> Batch:
        """Those that need not be made."""
        ...

    def make(self, positions: Ids) -> Iterator[Batch]: ...
    def group(self, rows: NDArray[Any], labels: Ids, ids: Ids) -> Groups:
        """The same whatever the order of the samples."""
        ...


@dataclass(frozen=True)
class ByPictures:
    """Hashes of thumbnails, alike if at most so many bits differ. They are kept where that can be."""

    index: Index
    fingerprinting: Fingerprinting
    most: int
    prints: Fingerprints | None = None

    def kept(self, positions: Ids) -> Batch:
        if self.prints is None:
            return positions[:0], np.empty(0), ()
        places, hashes = self.prints.get(self.index.ids[positions])
        return positions[places], hashes, ()

    def make(self, positions: Ids) -> Iterator[Batch]:
        for batch in self.fingerprinting.run(positions, self.index.ids[positions]):
            if self.prints is not None:
                self.prints.put(batch.positions, batch.hashes)
            yield batch.positions, batch.hashes, batch.failures

    def group(self, rows: NDArray[Any], labels: Ids, ids: Ids) -> Groups:
        return group_hashes(rows, labels, most=self.most, ids=ids)


@dataclass(frozen=True)
class ByFeatures:
    """Features of a model, alike if their cosine is at least so much. They are kept where that can be."""

    index: Index
    extraction: Extraction
    least: float
    features: Features | None = None

    def kept(self, positions: Ids) -> Batch:
        if self.features is None:
            return positions[:0], np.empty(0), ()
        places, found = self.features.get(self.index.ids[positions])
        return positions[places], found, ()

    def make(self, positions: Ids) -> Iterator[Batch]:
        for batch in self.extraction.run(positions, self.index.ids[positions]):
            if self.features is not None:
                self.features.put(batch.positions, batch.features)
            yield batch.positions, batch.features, batch.failures

    def group(self, rows: NDArray[Any], labels: Ids, ids: Ids) -> Groups:
        return group_vectors(rows, labels, least=self.least, ids=ids)


@dataclass(frozen=True)
class Gallery:
    """Where it is done: a dataset, what tells its samples apart, and where groups are kept."""

    dataset: str
    index: Index
    look: Look
    selections: Selections
    spend: Turn = lambda seconds: nullcontext()


def check_bound(model: str, bound: float) -> None:
    """Raise `WrongUse` for what cannot be meant: bits between pictures, or a cosine between features."""
    if model and not 0 < bound <= 1:
        raise WrongUse(f"the least cosine is {bound}; give a number above 0, up to 1")
    if not model and not (0 <= bound <= _BITS and bound == int(bound)):
        raise WrongUse(f"{bound} bits may differ; give a whole number from 0 to {_BITS}")


def find_groups(gallery: Gallery, running: Running) -> None:
    """Group the samples of a dataset, and keep who is in a group, with the size of it, group after group.

    Where the job is to hand out rows, what tells each sample apart is kept, and nothing is grouped. Raises
    `DatasetStale`.
    """
    record = running.record
    if record.version != gallery.index.version:
        raise DatasetStale(f"dataset {gallery.dataset!r} has another version by now; start another job")
    if record.result:  # it was done, and the process ended before it could say so
        return
    looking = _Looking(gallery, running)
    try:
        kept, further = _keep_rows(gallery, looking) if record.options.get(ROWS) else _group(gallery, looking)
    except Gone:
        if not running.over():
            raise
        return
    gallery.selections.put(record.id, kept)
    running.save(result=kept.digest, counts={**looking.counts, **further, "chosen": len(kept.ids)})


def _group(gallery: Gallery, looking: _Looking) -> tuple[Kept, Mapping[str, int]]:
    index, first = gallery.index, 0
    groups = np.full(len(index), -1, np.int32)
    pace = Pace(gallery.spend, looking.over)
    for found, rows in looking.run():
        with pace.turn(len(found)):
            labels = index.labels[found].astype(np.int64)
            numbers = gallery.look.group(rows, labels, index.ids[found])
        groups[found] = np.where(numbers >= 0, numbers + first, -1)
        first += int(numbers.max(initial=-1)) + 1
    order, sizes = _fold(groups)
    return Kept(index.ids[order], sizes, gallery.dataset, index.version), {"groups": first}


def _keep_rows(gallery: Gallery, looking: _Looking) -> tuple[Kept, Mapping[str, int]]:
    index = gallery.index
    parts = [(found, as_bytes(rows)) for found, rows in looking.run() if len(found)]
    if not parts:
        return Kept(index.ids[:0], np.empty(0, np.float32), gallery.dataset, index.version), {}
    found = np.concatenate([part[0] for part in parts])
    order = np.argsort(found)
    rows = np.concatenate([part[1] for part in parts])[order]
    ids = index.ids[found[order]]
    return Kept(ids, np.ones(len(ids), np.float32), gallery.dataset, index.version, rows), {}


def as_bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Rows of numbers as they cross a link, little-endian: (n, bytes)."""
    flat = rows.reshape(len(rows), -1)
    return np.ascontiguousarray(flat, flat.dtype.newbyteorder("<")).view(np.uint8)


class _Looking:
    """One pass over a dataset, class after class."""

    def __init__(self, gallery: Gallery, running: Running) -> None:
        self._gallery, self._running = gallery, running
        self.over = running.over
        self.counts = {"looked_at": 0, "failed": 0}

    def run(self) -> Iterator[tuple[Ids, NDArray[Any]]]:
        """Positions with a row each. Raises `Gone` if the job is over before it ends."""
        index, running, done = self._gallery.index, self._running, 0
        running.save(total=len(index), cursor=0, counts={}, failures=())
        for positions in _stretches(index.labels):
            yield self._find(positions)
            done += len(positions)
            running.show(cursor=done)

    def _find(self, positions: Ids) -> tuple[Ids, NDArray[Any]]:
        """Positions that ascend within a class, and a row for each of which there is one."""
        look = self._gallery.look
        parts = [look.kept(positions)]
        rest = np.setdiff1d(positions, parts[0][0])
        for batch in look.make(rest) if len(rest) else ():
            parts.append(batch)
            self._note(batch[2])
            if self._running.over():
                raise Gone("nobody waits for these groups any more")
        made = [part for part in parts if len(part[0])]
        if not made:
            return positions[:0], np.empty((0, 1, 1), np.uint64)
        found, rows = np.concatenate([part[0] for part in made]), np.concatenate([part[1] for part in made])
        self.counts["looked_at"] += len(found)
        order = np.argsort(found)
        return found[order], rows[order]

    def _note(self, failures: tuple[Failed, ...]) -> None:
        if failures:
            key = self._gallery.index.key
            named = tuple(Failing(one.id, key(one.position), str(one.error)[:_REASON]) for one in failures)
            self.counts["failed"] += len(failures)
            self._running.show(failures=self._running.record.counting({}, named).failures)


def _stretches(labels: NDArray[np.integer[Any]]) -> Iterator[Ids]:
    """Positions of some classes, as many together as have about `BLOCK` samples."""
    order, begins = by_class(labels.astype(np.int64))
    first = 0
    for end in begins[1:].tolist():
        if end - first >= BLOCK or (end == len(order) and end > first):
            yield order[first:end]
            first = end


def _fold(groups: Groups) -> tuple[Ids, NDArray[np.float32]]:
    """Who is in a group, those of one after those of another, and the size of each one's group."""
    (members,) = np.nonzero(groups >= 0)
    order = members[np.argsort(groups[members], kind="stable")]
    return order, np.bincount(groups[order])[groups[order]].astype(np.float32)


def unfold(sizes: NDArray[np.float32]) -> Groups:
    """The number of each one's group, from what `find_groups` has kept; raises `ValueError` for nonsense."""
    if not ((sizes >= 2) & (sizes <= len(sizes)) & (sizes == np.floor(sizes))).all():
        raise ValueError("groups of fewer than two samples")
    whole = sizes.astype(np.int64)
    changes = np.flatnonzero(np.diff(whole, prepend=0))  # groups of one size lie side by side
    runs = np.diff(changes, append=len(whole))
    if (runs % whole[changes]).any():
        raise ValueError("groups that are not whole")
    within = np.arange(len(whole)) - np.repeat(changes, runs)
    return (np.cumsum(within % np.maximum(whole, 1) == 0) - 1).astype(np.int32)
