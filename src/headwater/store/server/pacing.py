"""Requests begin one by one, in fair order, and no faster than the cores allow.

Without this they would sleep side by side in their slots, and whoever asks for most would get most: what is
short is CPU, so that is what clients must queue for. What serving costs per byte is learned on the way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headwater.engine.budget import Cores, Turnstile

_FIRST_GUESS = 1e-9  # CPU seconds per byte
_LEARN_SECONDS = 0.5
_LEARN = 0.3
_EVERYTHING = 1 << 62


class Pacing:
    """The line for the cores of this process. Safe to use from many threads."""

    def __init__(
        self,
        cores: Cores,
        *,
        clock: Callable[[], float] = time.monotonic,
        own_cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self._cores, self._clock, self._own_cpu = cores, clock, own_cpu
        self._line = Turnstile(1, _EVERYTHING, clock=clock)
        self._lock = threading.Lock()
        self._seconds_per_byte = _FIRST_GUESS
        self._seen, self._spent, self._bytes = clock(), own_cpu(), 0

    @property
    def waiting(self) -> int:
        return self._line.waiting

    @contextmanager
    def begin(self, client: str, size: int, *, patience: float, gone: Callable[[], bool]) -> Iterator[float]:
        """Wait for this client's turn and for cores; the seconds that the cores let it wait.

        Raises `Busy` or `Gone`. The CPU of the block itself is seen by `Cores`; what is set aside here only
        keeps the next in line from beginning before it was spent.
        """
        with self._line.enter(client, memory=max(1, size), patience=patience, gone=gone):
            begun = self._clock()
            self._cores.pace(patience)
            reserved = self._cores.reserve(size * self._learned(size), patience)
            waited = self._clock() - begun
        if reserved is None:
            yield waited
            return
        with reserved:
            yield waited

    def _learned(self, size: int) -> float:
        """CPU seconds per byte, from what this process spent and served lately."""
        with self._lock:
            self._bytes += size
            now, spent = self._clock(), self._own_cpu()
            if now - self._seen >= _LEARN_SECONDS:
                measured = (spent - self._spent) / max(self._bytes, 1)
                self._seconds_per_byte += _LEARN * (min(measured, 1e-6) - self._seconds_per_byte)
                self._seen, self._spent, self._bytes = now, spent, 0
            return self._seconds_per_byte
