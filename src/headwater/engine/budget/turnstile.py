"""The gate that every request to a store goes through: it blocks the caller's thread until its turn.

The rules of who goes first are in `admission`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from headwater.engine.budget.admission import Admission, Claim
from headwater.engine.budget.fairness import PRIORITIES
from headwater.errors import HeadwaterError, WrongUse

_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS = (
    0.05,
    0.5,
)  # how often one who waits is asked if he is still there
MOST_WAITING = 1024
MOST_EACH = 256


class Busy(HeadwaterError):
    """No turn within the caller's patience. The server turns it into an answer; no user sees it."""


class Gone(HeadwaterError):
    """The caller hung up while it waited."""


class Turnstile:
    """One queue for all requests: at most `requests` are worked on, and hold at most `memory` bytes.

    At most `most_waiting` wait, and one caller has at most `most_each` requests, waiting or inside. With
    `halve_slots` nobody is worked on in more than half of the slots while others are there.
    """

    def __init__(
        self,
        requests: int,
        memory: int,
        *,
        most_waiting: int = MOST_WAITING,
        most_each: int = MOST_EACH,
        halve_slots: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admission = Admission(requests, memory, halve_slots=halve_slots)
        self._most_waiting, self._most_each = most_waiting, most_each
        self._clock = clock
        self._lock = threading.Lock()
        self._parting: deque[Claim] = deque()

    def enter(
        self,
        caller: str,
        client: str = "",
        *,
        priority: str = "read",
        memory: int,
        patience: float,
        gone: Callable[[], bool],
    ) -> Turn:
        """Wait for a turn that holds `memory` bytes, in an order that is fair between callers.

        Within a caller it is fair between clients. Raises Busy after `patience` seconds (with 0: at once, if
        it would have to wait) or where too many wait already, Gone when `gone()` says that the caller has
        hung up, and WrongUse for more memory than there is.
        """
        claim = Claim(caller, _rank(priority), memory, client)
        with self._lock:
            self._check_room(caller)
            self._admission.ask(claim)
            if not claim.admitted:
                claim.bell = threading.Event()
        self._part()
        if claim.bell is not None:
            try:
                self._wait(claim, claim.bell, patience=patience, gone=gone)
            except BaseException:
                self.leave(claim)
                raise
        return Turn(self, claim)

    def leave(self, claim: Claim) -> None:
        """Give everything back; safe at any moment, in any thread, also twice.

        The trap: a reply's generator may be closed by the garbage collector, in a thread that holds the
        lock right now. So this never waits for the lock: whoever holds it does the work when it is done.
        """
        self._parting.append(claim)
        self._part()

    def leave_slot(self, claim: Claim) -> None:
        with self._lock:
            self._admission.leave_slot(claim)
        self._part()

    def grow(self, claim: Claim, extra: int) -> bool:
        with self._lock:
            grown = self._admission.grow(claim, extra)
        self._part()
        return grown

    @property
    def active(self) -> int:
        """Slots in use."""
        return self._admission.active

    @property
    def held(self) -> int:
        """Bytes in use."""
        return self._admission.held

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._admission.waiting

    def _check_room(self, caller: str) -> None:
        if (present := self._admission.present(caller)) >= self._most_each:
            raise Busy(f"{present} requests of this caller are under way, the most there may be; ask again")
        if (waiting := self._admission.waiting) >= self._most_waiting:
            raise Busy(f"{waiting} requests wait, the most there may be; ask again, or ask a replica")

    def _wait(
        self, claim: Claim, bell: threading.Event, *, patience: float, gone: Callable[[], bool]
    ) -> None:
        began, poll = self._clock(), _FIRST_POLL_SECONDS
        while not claim.admitted:
            waited = self._clock() - began
            if gone():
                raise Gone(f"the caller hung up after it had waited {waited:.1f} s for a turn")
            if waited >= patience and not claim.admitted:
                raise Busy(
                    f"no turn within {patience:g} s: {self.active} requests are worked on, "
                    f"{self.held:,} bytes are held, {self.waiting} wait; ask again, or raise the limits"
                )
            bell.wait(min(patience - waited, poll))
            poll = min(2 * poll, _LONGEST_POLL_SECONDS)

    def _part(self) -> None:
        while self._parting and self._lock.acquire(blocking=False):
            try:
                while self._parting:
                    self._admission.leave(self._parting.popleft())
            finally:
                self._lock.release()


class Turn:
    """A request inside the turnstile. Leaving the `with` block gives back whatever it still holds."""

    __slots__ = ("_claim", "_turnstile")

    def __init__(self, turnstile: Turnstile, claim: Claim) -> None:
        self._turnstile, self._claim = turnstile, claim

    @property
    def memory(self) -> int:
        """Bytes that it holds."""
        return 0 if self._claim.over else self._claim.memory

    @property
    def priority(self) -> str:
        """With which it was let in."""
        return PRIORITIES[self._claim.rank]

    def enter(self, further: Turnstile, *, memory: int, patience: float, gone: Callable[[], bool]) -> Turn:
        """Wait in a further queue, as the same client and with the same priority."""
        claim = self._claim
        return further.enter(
            claim.caller, claim.client, priority=self.priority, memory=memory, patience=patience, gone=gone
        )

    def leave_slot(self) -> None:
        """The work is done and the reply is being sent: let the next one work, keep the memory."""
        self._turnstile.leave_slot(self._claim)

    def grow(self, extra: int) -> bool:
        """Take `extra` more bytes if they are to be had without waiting; False changes nothing."""
        if extra < 0:
            raise WrongUse(f"cannot grow by {extra} bytes; leave the turn to give memory back")
        return self._turnstile.grow(self._claim, extra)

    def leave(self) -> None:
        self._turnstile.leave(self._claim)

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


def _rank(priority: str) -> int:
    try:
        return PRIORITIES.index(priority)
    except ValueError:
        raise WrongUse(f"no priority {priority!r}; there are {', '.join(PRIORITIES)}") from None
