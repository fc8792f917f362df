"""Stores that hold the same data: which to ask next, which to leave alone for a while."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from headwater.store.client.connection import Connection
from headwater.store.client.window import Window

log = logging.getLogger("headwater")

_FIRST_REST = 0.05
_LONGEST_REST = 2.0
_REMEMBERED = 64
_LATELY_SECONDS = 10.0  # after which a store that was slow may be tried again
_UNKNOWN = 1e-3
_SLOW = 2.0  # times the slowest usual answer, after which a second store is asked
_LEAST_SLOW = 0.05
_MOST_HEDGED = 0.1  # of all requests


class Replica:
    """A store, and what was seen of it lately."""

    def __init__(self, connection: Connection, clock: Callable[[], float] = time.monotonic) -> None:
        self.connection = connection
        link = connection.link
        self.window = Window(link.in_flight_bytes, deadline_seconds=link.deadline_seconds, clock=clock)
        self.under_way = 0
        self.failures = 0
        """Requests that were not answered, in all."""
        self._clock = clock
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._lately: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)  # when, and how long it took
        self._in_a_row = 0
        self._failed_at = -float("inf")
        self.rests_until = -float("inf")

    @property
    def name(self) -> str:
        return self.connection.address.place

    @property
    def known(self) -> bool:
        """Whether it ever answered."""
        return bool(self._seconds)

    def answered(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self._lately.append((self._clock(), seconds))
        self._in_a_row = 0
        self._until(-float("inf"))

    def _until(self, when: float) -> None:
        """Rest until then; a store that is no longer asked stays so."""
        if self.rests_until < float("inf"):
            self.rests_until = when

    def overtaken(self, seconds: float) -> None:
        """A replica answered first: rest. A store that is never waited for would never be known as slow."""
        now = self._clock()
        self._lately.append((now, seconds))
        self._rest(now - seconds)

    def failed(self, sent_at: float) -> None:
        """Rest, longer each time; requests that were sent before the last failure tell nothing new."""
        self.failures += 1
        self._rest(sent_at)

    def _rest(self, sent_at: float) -> None:
        if sent_at < self._failed_at:
            return
        rest = min(_LONGEST_REST, _FIRST_REST * 2.0**self._in_a_row) * random.uniform(0.5, 1.0)
        self._in_a_row += 1
        self._failed_at = self._clock()
        self._until(self._failed_at + rest)

    @property
    def usual_seconds(self) -> float:
        """What an answer lately took on average; 0 while unknown."""
        since = self._clock() - _LATELY_SECONDS
        lately = [seconds for when, seconds in list(self._lately) if when >= since]
        return sum(lately) / len(lately) if lately else 0.0

    @property
    def slow_after(self) -> float:
        """Seconds after which an answer is unusually late."""
        if len(self._seconds) < 8:
            return float("inf")
        ranked = sorted(self._seconds)
        return max(_LEAST_SLOW, _SLOW * ranked[int(0.95 * (len(ranked) - 1))])


class Replicas:
    """One or more stores with the same dataset. Safe to use from many threads."""

    def __init__(
        self, connections: Sequence[Connection], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.all = [Replica(connection, clock) for connection in connections]
        self.link = connections[0].link
        self.lock = threading.Lock()
        self._clock = clock
        self._asked = self._hedged = 0

    def choose(self, but: Sequence[Replica] = ()) -> tuple[Replica | None, float]:
        """The store to ask now, or None and how many seconds the first of them still rests."""
        with self.lock:
            now = self._clock()
            able = [replica for replica in self.all if replica not in but]
            ready = [replica for replica in able if replica.rests_until <= now]
            if ready:
                self._asked += 1
                return _quickest(ready), 0.0
            soonest = min((replica.rests_until for replica in able), default=now)
            return None, max(0.0, soonest - now)

    def choose_hedge(self, but: Sequence[Replica], size: int) -> Replica | None:
        """Another store to ask as well, with room for `size` bytes entered in its window.

        None if too many requests are asked twice already, or none has room now.
        """
        with self.lock:
            if not self.link.hedge or self._hedged >= 1 + _MOST_HEDGED * self._asked:
                return None
        found, _ = self.choose(but)
        if found is None or not found.window.try_enter(size):
            return None
        with self.lock:
            self._hedged += 1
        return found

    @property
    def slow_after(self) -> float:
        """Seconds after which another store would probably have answered; for ever if there is none."""
        return min(r.slow_after for r in self.all) if len(self.all) > 1 else float("inf")

    def has_other(self, replica: Replica) -> bool:
        """Whether another store than this one does not rest."""
        now = self._clock()
        return any(other is not replica and other.rests_until <= now for other in self.all)

    def retire(self, replica: Replica, why: Exception) -> bool:
        """Never ask this store again in this run, if there is another to ask."""
        with self.lock:
            if not any(other is not replica and other.rests_until < float("inf") for other in self.all):
                return False
            new = replica.rests_until < float("inf")
            replica.rests_until = float("inf")
        if new:
            log.warning("%s is no longer asked: %s", replica.name, why)
        return True

    @property
    def asked(self) -> int:
        """Requests that were sent, in all."""
        return self._asked

    @property
    def hedged(self) -> int:
        """Requests that a second store was asked as well."""
        return self._hedged

    @property
    def names(self) -> str:
        return ", ".join(replica.name for replica in self.all)

    def close(self) -> None:
        for replica in self.all:
            replica.connection.close()


def _quickest(ready: Sequence[Replica]) -> Replica:
    """The one whose answer should come first; one that is not known is taken to be as quick as the best."""
    usual = [replica.usual_seconds for replica in ready]
    best = min((seconds for seconds in usual if seconds), default=_UNKNOWN)
    waits = [(r.under_way + 1) * (seconds or best) for r, seconds in zip(ready, usual, strict=True)]
    return ready[waits.index(min(waits))]
