"""Requests begin one by one, in fair order, and no faster than the cores allow.

Without this they would sleep side by side in their slots, and whoever asks for most would get most: what is
short is CPU, so that is what clients must queue for. What serving costs per byte is learned on the way.

CPU is set aside for a request only while it can use it: not while it waits for memory, and no longer than
until its steps begin, which ask for CPU of their own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headwater.engine.budget import Busy, Cores, Gone, Reservation, Turn, Turnstile

_FIRST_GUESS = 1e-9  # CPU seconds per byte
_LEARN_SECONDS = 0.5
_LEARN = 0.3
_EVERYTHING = 1 << 62


@dataclass(frozen=True)
class Wish:
    """Who wants to begin what: `size` bytes for a client of a caller, who may be `gone`."""

    caller: str
    client: str
    size: int
    gone: Callable[[], bool]
    priority: str = "read"  # of `PRIORITIES`; the same in the line and in the turnstile


@dataclass
class Begun:
    """A request that may work: its turn, and the seconds that the cores let it wait."""

    turn: Turn
    waited: float
    reserved: Reservation | None

    def release(self) -> None:
        """Give back what was set aside: it is spent by now, and `Cores` has seen it."""
        if self.reserved is not None:
            self.reserved.settle(0.0)


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
    def begin(self, wish: Wish, turnstile: Turnstile, *, patience: float) -> Iterator[Begun]:
        """Wait for this client's place in the line, for cores, and for a turn. Raises `Busy` or `Gone`.

        The CPU of the block itself is seen by `Cores`; what is set aside here only keeps the next in line
        from beginning before it was spent.
        """
        deadline = self._clock() + patience
        seconds = wish.size * self._learned(wish.size)
        reserved: Reservation | None = None
        turn: Turn | None = None
        try:
            with _enter(self._line, wish, max(1, wish.size), patience):
                begun = self._clock()
                reserved = self._set_aside(seconds, deadline, wish.gone)
                waited = self._clock() - begun
                turn = _try(turnstile, wish)
            if turn is None:
                # Whoever waits for memory keeps neither the line nor cores from the others.
                _give_back(reserved)
                turn = _enter(turnstile, wish, wish.size, deadline - self._clock())
                reserved = self._cores.reserve(seconds, 0.0)
            yield Begun(turn, waited, reserved)
        finally:
            _give_back(reserved)
            if turn is not None:
                turn.leave()

    def _set_aside(self, seconds: float, deadline: float, gone: Callable[[], bool]) -> Reservation | None:
        reserved = self._cores.reserve(seconds, max(0.0, deadline - self._clock()), gone=gone)
        if reserved is None:  # more than could be saved up in time: it still waits for debts to be paid
            self._cores.pace(deadline - self._clock(), gone=gone)
        if gone():
            _give_back(reserved)
            raise Gone("the caller hung up while it waited for cores")
        return reserved

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


def _try(turnstile: Turnstile, wish: Wish) -> Turn | None:
    try:
        return _enter(turnstile, wish, wish.size, 0.0)
    except Busy:
        return None


def _enter(queue: Turnstile, wish: Wish, memory: int, patience: float) -> Turn:
    return queue.enter(
        wish.caller,
        wish.client,
        priority=wish.priority,
        memory=memory,
        patience=max(0.0, patience),
        gone=wish.gone,
    )


def _give_back(reserved: Reservation | None) -> None:
    if reserved is not None:
        reserved.settle(0.0)
