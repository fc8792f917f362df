"""What a link gives while files are awaited, which only the link and the disk behind it hold up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Traffic:
    """Bytes that came, of any kind, while files were awaited. Safe to use from many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._awaited = 0
        self._since = self._seconds = 0.0
        self._bytes = 0

    @contextmanager
    def awaiting(self, *, files: bool) -> Iterator[None]:
        """An answer is awaited, of files or of something that takes a store's CPU too."""
        if not files:
            yield
            return
        with self._lock:
            if not self._awaited:
                self._since = self._clock()
            self._awaited += 1
        try:
            yield
        finally:
            with self._lock:
                self._awaited -= 1
                if not self._awaited:
                    self._seconds += self._clock() - self._since

    def count(self, size: int) -> None:
        """Bytes that came now."""
        with self._lock:
            if self._awaited:
                self._bytes += size

    def read(self) -> tuple[int, float]:
        """Bytes, and the seconds in which at least one answer with files was awaited."""
        with self._lock:
            running = self._clock() - self._since if self._awaited else 0.0
            return self._bytes, self._seconds + running
