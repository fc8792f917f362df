"""One request until it is answered: asked again after a rest, of a replica, or of two stores at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from headwater.errors import (
    DatasetNotFound,
    DatasetStale,
    HeadwaterError,
    Incompatible,
    ModelNotFound,
    Refused,
    StoreLost,
    WrongUse,
)
from headwater.store.client.connection import GRACE, Call, Passing, TimedOut
from headwater.store.client.replicas import Replica, Replicas
from headwater.store.wire.payloads import Damaged

T = TypeVar("T")

_IMPATIENT = 4.0  # times what is slow already, after which a request moves to another store
_LEAST_IMPATIENT = 0.5
_OF_ONE_STORE = (DatasetNotFound, DatasetStale, Incompatible, ModelNotFound, Refused, WrongUse)
"""What one replica may say although another would answer: it serves something else by now."""


class Abandoned(HeadwaterError):
    """Nobody waits for this any more."""


class TooSlow(HeadwaterError):
    """It was not answered in time; a smaller request may be."""


def locate(error: StoreLost, dataset: str, position: int, during: str) -> StoreLost:
    """The same loss with what was asked for: of which dataset, from which position on, and when."""
    return StoreLost(
        f"{error} (dataset {dataset!r}, position {position}, {during}); "
        "check the store and the network, or raise give_up_seconds",
        store=error.store,
        dataset=dataset,
        position=position,
    )


class Errand(Generic[T]):
    """Asks for one ticket and checks the answer with `accept`, which raises `Damaged` for a bad one.

    `size` is what the answer will take on the link. An errand for something `divisible` fails with
    `TooSlow` when it was late at one store, or at two of several, so that the asker can ask for less at once.
    """

    def __init__(
        self,
        replicas: Replicas,
        ticket: bytes,
        accept: Callable[[list[tuple[Any, Any]]], T],
        *,
        size: int = 0,
        divisible: bool = False,
        begun: float | None = None,
    ) -> None:
        self._replicas, self._ticket, self._accept = replicas, ticket, accept
        self._size, self._divisible = size, divisible
        self._begun = time.monotonic() if begun is None else begun
        self._answers: SimpleQueue[Call | None] = SimpleQueue()
        self._calls: dict[Call, Replica] = {}
        self.answered_by: Replica | None = None
        self._abandoned = False
        self._renewed = self._complained = self._moved = False
        self._late = 0
        self._failure: Exception | None = None

    def abandon(self) -> None:
        """Wake whoever waits in `run`."""
        self._abandoned = True
        for replica in self._replicas.all:
            replica.window.wake()
        self._answers.put(None)

    def run(self) -> T:
        """The accepted answer. Raises `StoreLost`, `Refused`, `Abandoned`, or what the store says."""
        try:
            self._send()
            while True:
                call = self._next()
                if call is None:
                    continue
                replica = self._drop(call)
                answer = self._judge(call, replica)
                if answer is not None:
                    self._note_overtaken()
                    return answer[0]
                if not self._calls:
                    self._send()
        finally:
            for call in list(self._calls):
                call.cancel()
                self._drop(call)

    def _send(self) -> None:
        """Ask a store that does not rest; wait for one if all do."""
        while True:
            replica, rest = self._replicas.choose()
            if replica is not None:
                break
            self._rest(rest)
        replica.connection.check()
        if not replica.window.enter(self._size, lambda: self._abandoned):
            raise Abandoned("the run is over")
        self._begin(replica)

    def _rest(self, seconds: float) -> None:
        """Wait, but not past the limit: a store that complained rests for longer than one that failed."""
        left = self._begun + self._replicas.link.give_up_seconds - time.monotonic()
        if left <= 0:
            raise self._lost(self._failure or Passing("it is left alone for a while"))
        self._pause(min(seconds, left))

    def _lost(self, error: Exception) -> StoreLost:
        waited, names = time.monotonic() - self._begun, self._replicas.names
        return StoreLost(f"no answer from {names} for {waited:.0f} s; the last failure: {error}", store=names)

    def _hedge(self, replica: Replica) -> bool:
        """Ask a second store if it has room now: who waits there while holding room here waits for ever."""
        other = self._replicas.choose_hedge((replica,), self._size)
        if other is None:
            return False
        self._begin(other)
        return True

    def _begin(self, replica: Replica) -> None:
        with self._replicas.lock:
            replica.under_way += 1
        self._calls[replica.connection.begin(self._ticket, self._answers, self._accept)] = replica

    def _next(self) -> Call | None:
        """The next call that ended; None if instead time passed, which may have meant to ask elsewhere."""
        call, replica = next(iter(self._calls.items()))
        waited = time.monotonic() - call.begun
        deadline = replica.connection.link.deadline_seconds + GRACE
        slow = self._replicas.slow_after if len(self._calls) == 1 else deadline
        try:
            ended = self._answers.get(timeout=max(0.0, min(slow, deadline) - waited) + 1e-3)
        except Empty:
            return self._overdue(call, replica, deadline)
        if ended is None or self._abandoned:
            raise Abandoned("the run is over")
        return ended if ended in self._calls else None

    def _overdue(self, call: Call, replica: Replica, deadline: float) -> Call | None:
        if time.monotonic() - call.begun >= deadline:
            call.give_up()
            call.error = TimedOut(f"{replica.name} did not answer in time")
            return call
        if len(self._calls) == 1:
            if self._hedge(replica):
                return None
            if self._may_move(call, replica):
                call.cancel()
                call.error = Passing(f"{replica.name} is unusually slow")
                return call
        self._pause(min(0.05, deadline), calls=True)
        return None

    def _may_move(self, call: Call, replica: Replica) -> bool:
        """Whether to leave a store that crawls for another one, where asking both would be too much. Once."""
        waited = time.monotonic() - call.begun
        if not self._replicas.link.hedge or self._moved:
            return False
        if waited < max(_LEAST_IMPATIENT, _IMPATIENT * self._replicas.slow_after):
            return False
        self._moved = self._replicas.has_other(replica)
        return self._moved

    def _note_overtaken(self) -> None:
        now = time.monotonic()
        for call, replica in self._calls.items():
            replica.overtaken(now - call.begun)

    def _drop(self, call: Call) -> Replica:
        replica = self._calls.pop(call)
        replica.window.leave(self._size)
        with self._replicas.lock:
            replica.under_way -= 1
        return replica

    def _judge(self, call: Call, replica: Replica) -> tuple[T] | None:
        """The answer, or None if it should be asked for again."""
        error = call.error
        if error is None:
            replica.answered(time.monotonic() - call.begun)
            replica.window.answered(self._size, call.latency)
            self.answered_by = replica
            return (call.answer,)
        if isinstance(error, Damaged):
            error = Passing(f"{replica.name}: {error}")
        self._forgive(error, call, replica)
        return None

    def _forgive(self, error: Exception, call: Call, replica: Replica) -> None:
        """Raise unless the failure may pass."""
        if isinstance(error, Refused) and not self._renewed and self._has_new_token(call):
            self._renewed = True
            return
        if not isinstance(error, Passing):
            self._believe(error, call, replica)
            return
        replica.failed(call.begun)
        if isinstance(error, TimedOut):
            self._late += 1
            replica.window.timed_out()
        self._failure = error
        if time.monotonic() - self._begun >= self._replicas.link.give_up_seconds:
            raise self._lost(error) from error
        if isinstance(error, TimedOut) and self._divisible and self._late >= min(2, len(self._replicas.all)):
            raise TooSlow(str(error)) from error

    def _believe(self, error: Exception, call: Call, replica: Replica) -> None:
        """Raise what a store complains of when it says so twice; at once if it complains of others too.

        A bit that was flipped on the way makes another request of one, or another token. But a token that is
        refused from the start is not tried again: stores count that.
        """
        may_err = replica.known or (replica.is_new and not isinstance(error, Refused))
        if not self._complained and may_err:
            self._complained = True
        elif not isinstance(error, _OF_ONE_STORE) or not self._replicas.set_aside(replica, error, call.begun):
            raise error

    def _has_new_token(self, call: Call) -> bool:
        """Another errand may have read the file already, while this one was under way with the old token."""
        secret = call.connection.secret
        return secret.renew() or secret.headers != call.headers

    def _pause(self, seconds: float, *, calls: bool = False) -> None:
        """Rest, but wake when abandoned, or (with `calls`) when a call has ended."""
        try:
            ended = self._answers.get(timeout=max(seconds, 1e-3))
        except Empty:
            return
        if ended is None or self._abandoned:
            raise Abandoned("the run is over")
        if calls:
            self._answers.put(ended)


class Errands:
    """The errands of one run: all of them can be abandoned, and those that come later are at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: set[Errand[Any]] = set()
        self._over = False

    def run(self, errand: Errand[T]) -> T:
        """Raises what `Errand.run` does."""
        with self._lock:
            self._under_way.add(errand)
            over = self._over
        if over:
            errand.abandon()
        try:
            return errand.run()
        finally:
            with self._lock:
                self._under_way.discard(errand)

    def abandon(self) -> None:
        with self._lock:
            self._over = True
            errands = list(self._under_way)
        for errand in errands:
            errand.abandon()
