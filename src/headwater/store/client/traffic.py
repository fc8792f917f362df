"""How many bytes came from a store, and for how long somebody waited for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType


class Traffic:
    """As a context: an answer is awaited. Safe to use from many threads, which all count as one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._awaited = 0
        self._since = self._busy = 0.0
        self._bytes = 0

    def __enter__(self) -> Traffic:
        with self._lock:
            if not self._awaited:
                self._since = self._clock()
            self._awaited += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._awaited -= 1
            if not self._awaited:
                self._busy += self._clock() - self._since

    def count(self, size: int) -> None:
        with self._lock:
            self._bytes += size

    def read(self) -> tuple[int, float]:
        """Bytes of payload so far, and seconds in which at least one answer was awaited."""
        with self._lock:
            running = self._clock() - self._since if self._awaited else 0.0
            return self._bytes, self._busy + running
