"""Fingerprints at the end of a run: of each picture hashes of its thumbnail, by which alike ones are found.

The chain is decode and thumbnail, so a store beyond a link can be asked for thumbnails of 1.6 kB (cut 2)
instead of files; files that lie here are read and decoded as for anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headwater.data.image import DEFAULT_LIMITS, Limits
from headwater.data.image.fingerprint import EDGE, Hashes, hash_thumbnails
from headwater.data.pipeline import Pipeline
from headwater.data.steps.base import Image
from headwater.data.steps.decode import Decode
from headwater.data.steps.thumbnail import Thumbnail
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew
from headwater.engine.fetching import Reader
from headwater.engine.inference import Failed
from headwater.engine.meter import Meter
from headwater.engine.run import Bounds, Failure, Task, run

Ids = NDArray[np.int64]

BATCH = 256
_BYTES_AHEAD = 1 << 26
_LOT = 16


def fingerprint_chain(limits: Limits = DEFAULT_LIMITS) -> Chain:
    """The steps from a file to what is hashed."""
    return Chain(Pipeline((Decode(), Thumbnail(EDGE))), limits=limits)


@dataclass(frozen=True, eq=False)
class FingerprintBatch:
    """The samples of a task that could be made, in its order, with the hashes of each; and the others."""

    positions: Ids
    ids: Ids
    hashes: Hashes
    failures: tuple[Failed, ...] = ()


class FingerprintSink:
    """Gathers the thumbnails of a batch and hashes them, in the thread that brings the last one."""

    batch_bytes = BATCH * EDGE * EDGE

    def open(self, task: Task) -> _Target:
        return _Target(task)


class _Target:
    """What came for one batch so far."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._made = np.zeros(len(task.ids), np.bool_)
        self._thumbnails = np.empty((len(task.ids), EDGE, EDGE), np.uint8)

    def put(self, slot: int, image: Image) -> None:
        self._thumbnails[slot] = image[:, :, 0]
        self._made[slot] = True

    def put_fields(self, slots: Sequence[int], fields: Mapping[str, Sequence[object]]) -> None:
        return None

    def settle(self, begin: int, end: int) -> None:
        return None

    def finish(self, failures: Sequence[Failure]) -> FingerprintBatch:
        positions, ids, made = self._task.positions, self._task.ids, self._made
        failed = (Failed(int(positions[one.slot]), int(ids[one.slot]), one.error) for one in failures)
        hashes = hash_thumbnails(self._thumbnails[made])
        return FingerprintBatch(positions[made], ids[made], hashes, tuple(failed))


@dataclass(frozen=True)
class Fingerprinting:
    """All that it takes to make fingerprints: where files or thumbnails come from, and threads.

    `reader` makes a reader for one run with `chain`, which is that of `fingerprint_chain`; with one that
    gives finished thumbnails it is empty.
    """

    reader: Callable[[], Reader]
    crew: Crew
    chain: Chain = field(default_factory=fingerprint_chain)
    meter: Meter = field(default_factory=Meter)

    def run(self, positions: Ids, ids: Ids) -> Iterator[FingerprintBatch]:
        """The fingerprints of these samples, in order, at most `BATCH` at a time, with what failed."""
        ahead = 2 + max(self.crew.workers, self.crew.readers)
        return run(
            _tasks(positions, ids),
            self.reader(),
            chain=self.chain,
            sink=FingerprintSink(),
            crew=self.crew,
            bounds=Bounds(batches=ahead, bytes=_BYTES_AHEAD, lot=_LOT),
            meter=self.meter,
        )


def _tasks(positions: Ids, ids: Ids) -> Iterator[Task]:
    for begin in range(0, len(ids), BATCH):
        part = slice(begin, begin + BATCH)
        yield Task(positions[part], ids[part])
