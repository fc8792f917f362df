"""How much may be asked for at once: what the link holds on its way, and a little more.

Twice the bandwidth-delay product keeps a link full while replies are not evenly spaced; a few requests are
always allowed, so that the store has work while a reply is on its way. More would only wait in a queue. The
queue itself adds to the latency that is seen, so a bound in time comes on top: no more than arrives within
half a deadline.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

_REQUESTS = 4
_REMEMBERED_SECONDS = 10.0
_SLICE_SECONDS = 0.1
_FEW = 8  # slices whose halves would tell more of chance than of the link
_FIRST_REQUEST = 1 << 20
_LEAST_REQUEST = 1 << 14
_MOST_REQUEST = 1 << 23  # more gains nothing, and lets other clients of the store wait


@dataclass(slots=True)
class _Slice:
    """Replies that ended at about the same time, so that thousands of small ones cost no more than a few."""

    begun: float
    ended: float
    bytes: int
    latency: float


class Window:
    """Bytes under way on one link. Safe to use from many threads, which enter in the order they came."""

    def __init__(
        self, most: int, *, deadline_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._deadline = deadline_seconds
        self._clock = clock
        self._room = threading.Condition()
        self._held = self._requests = 0
        self._queue: deque[object] = deque()  # who waits: without an order, small requests starve a large one
        self._seen: deque[_Slice] = deque()
        self._rate = 0.0
        self._slowed = float(_FIRST_REQUEST * _REQUESTS)

    def enter(self, size: int, abandoned: Callable[[], bool]) -> bool:
        """Wait until `size` more bytes may be asked for; False if nobody wants them any more."""
        place = object()
        with self._room:
            self._queue.append(place)
            try:
                self._room.wait_for(lambda: abandoned() or (self._queue[0] is place and self._fits(size)))
                if abandoned():
                    return False
                self._held += size
                self._requests += 1
                return True
            finally:
                self._queue.remove(place)
                self._room.notify_all()

    def try_enter(self, size: int) -> bool:
        """Enter if that is possible now, and nobody waits."""
        with self._room:
            if self._queue or not self._fits(size):
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
            self._remember(now, size, latency)
            self._rate = self._measure()
            self._slowed = min(self._slowed * 1.05, float(self._most))

    def timed_out(self) -> None:
        """A reply did not come in time: ask for less, until replies come again."""
        with self._room:
            self._slowed = max(_LEAST_REQUEST, self._slowed / 2)

    @property
    def rate(self) -> float:
        """Bytes per second that came lately; 0 while unknown."""
        with self._room:
            return self._rate

    @property
    def target(self) -> int:
        """Bytes that may be under way."""
        with self._room:
            return self._target()

    @property
    def request_bytes(self) -> int:
        """What one request should ask for, so that it ends well before its deadline."""
        with self._room:
            within = self._rate * self._deadline / (2 * _REQUESTS) if self._rate else _FIRST_REQUEST
            return int(max(_LEAST_REQUEST, min(within, self._slowed, _MOST_REQUEST, self._most)))

    def _fits(self, size: int) -> bool:
        if self._held + size > self._most:
            return not self._held
        return self._requests < _REQUESTS or self._held + size <= self._target()

    def _target(self) -> int:
        if not self._rate:
            return min(self._most, int(self._slowed))
        latency = min(seen.latency for seen in self._seen)
        return min(self._most, int(self._rate * min(2 * latency, self._deadline / 2)))

    def _remember(self, now: float, size: int, latency: float) -> None:
        last = self._seen[-1] if self._seen else None
        if last is not None and now - last.begun < _SLICE_SECONDS:
            last.ended, last.bytes, last.latency = now, last.bytes + size, min(last.latency, latency)
        else:
            self._seen.append(_Slice(now, now, size, latency))
        while now - self._seen[0].ended > _REMEMBERED_SECONDS:
            self._seen.popleft()

    def _measure(self) -> float:
        """The rate over all that is remembered, or over its better half: the trainer may have paused."""
        if len(self._seen) < 2:
            return 0.0
        # What came in a slice came since the end of the one before it.
        first, last = self._seen[0].ended, self._seen[-1].ended
        middle = (first + last) / 2
        halves = [0, 0]
        for seen in islice(self._seen, 1, None):
            halves[seen.ended > middle] += seen.bytes
        best = sum(halves) if len(self._seen) < _FEW else 2 * max(halves)
        return best / max(last - first, 1e-3)
