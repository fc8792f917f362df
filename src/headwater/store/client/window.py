"""How much may be asked for at once: what the link holds on its way, and a little more.

Twice the bandwidth-delay product keeps a link full while replies are not evenly spaced; a few requests are
always allowed, so that the store has work while a reply is on its way. More would only wait in a queue.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

_REQUESTS = 4
_REMEMBERED_SECONDS = 10.0
_FIRST_REQUEST = 1 << 20
_LEAST_REQUEST = 1 << 14


class Window:
    """Bytes under way on one link. Safe to use from many threads."""

    def __init__(
        self, most: int, *, deadline_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._deadline = deadline_seconds
        self._clock = clock
        self._room = threading.Condition()
        self._held = self._requests = 0
        self._seen: deque[tuple[float, int, float]] = deque()  # when a reply ended, its bytes, its latency
        self._slowed = float(_FIRST_REQUEST * _REQUESTS)

    def enter(self, size: int, abandoned: Callable[[], bool]) -> bool:
        """Wait until `size` more bytes may be asked for; False if nobody wants them any more."""
        with self._room:
            self._room.wait_for(lambda: abandoned() or self._fits(size))
            if abandoned():
                return False
            self._held += size
            self._requests += 1
            return True

    def leave(self, size: int) -> None:
        with self._room:
            self._held -= size
            self._requests -= 1
            self._room.notify_all()

    def wake(self) -> None:
        """Let those who wait look whether they still want to."""
        with self._room:
            self._room.notify_all()

    def answered(self, size: int, latency: float) -> None:
        """A reply of `size` bytes ended now; its first word came after `latency` seconds."""
        now = self._clock()
        with self._room:
            self._seen.append((now, size, latency))
            while self._seen and now - self._seen[0][0] > _REMEMBERED_SECONDS:
                self._seen.popleft()
            self._slowed = min(self._slowed * 1.05, float(self._most))

    def timed_out(self) -> None:
        """A reply did not come in time: ask for less, until replies come again."""
        with self._room:
            self._slowed = max(_LEAST_REQUEST, self._slowed / 2)

    @property
    def rate(self) -> float:
        """Bytes per second that came lately; 0 while unknown."""
        with self._room:
            return self._rate()

    @property
    def target(self) -> int:
        """Bytes that may be under way."""
        with self._room:
            return self._target()

    @property
    def request_bytes(self) -> int:
        """What one request should ask for, so that it ends well before its deadline."""
        with self._room:
            rate = self._rate()
            within = rate * self._deadline / (2 * _REQUESTS) if rate else _FIRST_REQUEST
            return int(max(_LEAST_REQUEST, min(within, max(self._slowed, _LEAST_REQUEST), self._most)))

    def _fits(self, size: int) -> bool:
        if self._held + size > self._most:
            return not self._held
        return self._requests < _REQUESTS or self._held + size <= self._target()

    def _target(self) -> int:
        if not self._seen:
            return min(self._most, _REQUESTS * _FIRST_REQUEST)
        latency = min(latency for _, _, latency in self._seen)
        return min(self._most, int(2 * self._rate() * latency))

    def _rate(self) -> float:
        """The best rate over two adjacent halves of what is remembered."""
        if len(self._seen) < 2:
            return 0.0
        first, last = self._seen[0][0], self._seen[-1][0]
        middle = (first + last) / 2
        halves = [0, 0]
        for when, size, _ in self._seen:
            halves[when > middle] += size
        return max(halves) / max((last - first) / 2, 1e-3)
