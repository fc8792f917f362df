"""Stores that hold the same data: which to ask next, which to leave alone for a while."""

from __future__ import annotations

import copy
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from headwater.store.client.connection import Connection
from headwater.store.client.window import Window

log = logging.getLogger("headwater")

_FIRST_REST = 0.05
_LONGEST_REST = 2.0
_FIRST_ASIDE = 5.0  # seconds; what a store complains of passes when somebody mends it
_LONGEST_ASIDE = 60.0
_REMEMBERED = 64
_IN_VAIN_SECONDS = 0.5  # of trying, after which a store is known to be failing
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
        self._complaints = 0  # since it last answered
        self._silent_since = float("inf")  # when what failed first since its last answer was sent
        self._failed_at = -float("inf")
        self.rests_until = -float("inf")

    @property
    def name(self) -> str:
        return self.connection.address.place

    @property
    def known(self) -> bool:
        """Whether it answers, as far as is known."""
        return bool(self._seconds) and not self._complaints

    @property
    def is_new(self) -> bool:
        """Whether nothing is known of it yet."""
        return not self._seconds and not self._complaints

    @property
    def is_aside(self) -> bool:
        """Whether it rests because of what it said."""
        return self._complaints > 0 and self.rests_until > self._clock()

    @property
    def is_failing(self) -> bool:
        """Whether it complained, or was tried in vain for a while, since it last answered.

        Until a deadline after its rest: by then it is known again from whoever tried it.
        """
        # With the rest, as it may be longer than anybody waits.
        in_vain = self.rests_until - self._silent_since >= _IN_VAIN_SECONDS
        until = self.rests_until + self.connection.link.deadline_seconds
        return (in_vain or self._complaints > 0) and self._clock() < until

    def answered(self, seconds: float) -> None:
        if self._complaints:
            log.info("%s answers again", self.name)
        self._seconds.append(seconds)
        self._lately.append((self._clock(), seconds))
        self._in_a_row = self._complaints = 0
        self._silent_since = float("inf")
        self.rests_until = -float("inf")

    def overtaken(self, seconds: float) -> None:
        """A replica answered first: rest. A store that is never waited for would never be known as slow."""
        now = self._clock()
        self._lately.append((now, seconds))
        self._rest(now - seconds)

    def failed(self, sent_at: float) -> None:
        """Rest, longer each time; requests that were sent before the last failure tell nothing new."""
        self.failures += 1
        self._silent_since = min(self._silent_since, sent_at)
        self._rest(sent_at)

    def _rest(self, sent_at: float) -> None:
        if sent_at < self._failed_at:
            return
        self._rest_for(min(_LONGEST_REST, _FIRST_REST * 2.0**self._in_a_row))
        self._in_a_row += 1

    def complained(self, sent_at: float) -> bool:
        """Rest for longer than after a failure; whether it answered before."""
        if sent_at < self._failed_at:
            return False
        self._rest_for(min(_LONGEST_ASIDE, _FIRST_ASIDE * 2.0**self._complaints))
        self._complaints += 1
        return self._complaints == 1

    def _rest_for(self, most: float) -> None:
        """By chance a little less, so that clients do not come back together."""
        self._failed_at = self._clock()
        self.rests_until = self._failed_at + most * random.uniform(0.5, 1.0)

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


@dataclass
class _Sent:
    """Requests that were sent, and those for which a second store was asked as well."""

    asked: int = 0
    hedged: int = 0


class Replicas:
    """One or more stores with the same dataset. Safe to use from many threads."""

    def __init__(
        self, connections: Sequence[Connection], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.all = [Replica(connection, clock) for connection in connections]
        self.link = connections[0].link
        self.lock = threading.Lock()
        self._clock = clock
        self._sent = _Sent()

    def others(self, replica: Replica) -> Iterator[Replicas]:
        """Each of the others by itself, for what this one cannot give; none that is known to be failing."""
        for other in self.all:
            if other is not replica and not other.is_failing:
                yield self._only(other)

    def _only(self, replica: Replica) -> Replicas:
        """This one, waited for no longer than a deadline."""
        alone = copy.copy(self)
        alone.all = [replica]
        patience = min(self.link.deadline_seconds, self.link.give_up_seconds)
        alone.link = replace(self.link, give_up_seconds=patience)
        return alone

    def choose(self, but: Sequence[Replica] = ()) -> tuple[Replica | None, float]:
        """The store to ask now, or None and how many seconds the first of them still rests."""
        with self.lock:
            now = self._clock()
            able = [replica for replica in self.all if replica not in but]
            ready = [replica for replica in able if replica.rests_until <= now]
            if ready:
                self._sent.asked += 1
                return _quickest(ready), 0.0
            soonest = min((replica.rests_until for replica in able), default=now)
            return None, max(0.0, soonest - now)

    def choose_hedge(self, but: Sequence[Replica], size: int) -> Replica | None:
        """Another store to ask as well, with room for `size` bytes entered in its window.

        None if too many requests are asked twice already, or none has room now.
        """
        with self.lock:
            if not self.link.hedge or self._sent.hedged > _MOST_HEDGED * self._sent.asked:
                return None
            self._sent.hedged += 1  # before another thread looks
        found, _ = self.choose(but)
        if found is None or not found.window.try_enter(size):
            with self.lock:
                self._sent.hedged -= 1
            return None
        return found

    @property
    def slow_after(self) -> float:
        """Seconds after which another store would probably have answered; for ever if there is none."""
        return min(r.slow_after for r in self.all) if len(self.all) > 1 else float("inf")

    def has_other(self, replica: Replica) -> bool:
        """Whether another store than this one does not rest."""
        now = self._clock()
        return any(other is not replica and other.rests_until <= now for other in self.all)

    def set_aside(self, replica: Replica, why: Exception, sent_at: float) -> bool:
        """Leave a store that complains alone for a while, if there is another to ask."""
        with self.lock:
            if all(other is replica or other.is_aside for other in self.all):
                return False
            new = replica.complained(sent_at)
        if new:
            log.warning("%s is not asked for a while: %s", replica.name, why)
        return True

    @property
    def asked(self) -> int:
        """Requests that were sent, in all."""
        return self._sent.asked

    @property
    def hedged(self) -> int:
        """Requests that a second store was asked as well."""
        return self._sent.hedged

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
