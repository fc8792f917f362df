"""What it takes to load each sample, after plans and caches: for selectors that weigh it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headwater.engine.fetching import Fetched, Reader, Wanted
from headwater.measure.signals import Signals

Noted = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32], int]


@dataclass(frozen=True, eq=False)
class Loads:
    """Notes of what was fetched, from many threads, until the training loop's thread takes them."""

    _noted: deque[Noted] = field(default_factory=deque)

    def watch(self, reader: Reader) -> Reader:
        """The same reader with a clock beside it."""
        return _Timed(reader, self._noted)

    def settle(self, signals: Signals) -> None:
        """Write down what was noted so far."""
        while self._noted:
            positions, seconds, sizes, epoch = self._noted.popleft()
            signals.note_load(positions, seconds=seconds, bytes=sizes, epoch=epoch)


@dataclass(frozen=True, eq=False)
class _Timed:
    inner: Reader
    noted: deque[Noted]

    def sizes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.inner.sizes(positions)

    def fetch(self, wanted: Wanted) -> Fetched:
        """Seconds are shared among the samples of a request by their bytes."""
        begin = time.perf_counter()
        found = self.inner.fetch(wanted)
        seconds = time.perf_counter() - begin
        sizes = _bytes_of(found)
        total = float(sizes.sum())
        shares = sizes / total if total else np.full(len(sizes), 1 / max(1, len(sizes)), np.float32)
        self.noted.append((wanted.positions, (seconds * shares).astype(np.float32), sizes, wanted.epoch))
        return found

    def key(self, position: int) -> str:
        return self.inner.key(position)

    def abandon(self) -> None:
        self.inner.abandon()


def _bytes_of(found: Fetched) -> NDArray[np.float32]:
    if found.costs is not None:
        return found.costs.bytes.astype(np.float32)
    return np.array([0 if value is None else len(value) for value in found.values], np.float32)
