"""The rules by which requests are let in: slots, memory, order. No threads and no clock here.

1. A request waits for one of `requests` slots and for its memory. It may give the slot back and keep the
   memory, while its reply is sent.
2. The order is strict between priorities: a predict goes before any read, however long the read has
   waited. There is no ageing; a store that is always busy with predictions answers no reads, and their
   callers are told so when their patience ends. Within a priority it is fair by bytes (`fairness`).
3. The first in this order that does not fit into the free memory blocks everyone behind it, smaller
   requests and lower priorities too. While it waits nobody enters, so memory drains and it gets in: large
   requests are not starved by small ones. Small ones are not starved by large ones either: the order
   charges by bytes.
4. While other clients wait or are inside, one client holds at most half of the memory. A request that
   would take it past that is held back without blocking the others: its client waits for its own replies
   to be read. A request for more than half is let in when nothing at all is held.
5. Those inside may grow from free memory ahead of those who wait: they were let in first, nobody enters
   meanwhile, and what they finish is what drains.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from headwater.engine.budget.fairness import PRIORITIES, FairQueue
from headwater.errors import WrongUse

_LEAST_COST = 4096  # bytes; a request is work even if it asks for no memory


@dataclass(eq=False, slots=True)
class Claim:
    """One request: it waits, then is inside, then is over."""

    client: str
    rank: int  # place of its priority in PRIORITIES
    memory: int  # bytes asked for, with what it has grown by
    admitted: bool = False
    slot: bool = False
    over: bool = False
    bell: threading.Event | None = None  # rung when it is let in; only a caller that has to wait makes one


class Admission:
    """Who is inside and who waits. Every change lets in whom it makes room for."""

    def __init__(self, requests: int, memory: int) -> None:
        if requests < 1 or memory < 1:
            raise WrongUse(f"{requests} requests and {memory} bytes of memory; both must be 1 or more")
        self.requests, self.memory = requests, memory
        self.active = self.held = 0
        self.queues: list[FairQueue[Claim]] = [FairQueue() for _ in PRIORITIES]
        self._present: dict[str, int] = {}  # requests of a client, waiting or inside
        self._held: dict[str, int] = {}

    def ask(self, claim: Claim) -> None:
        """Let a request in if its turn is now, else make it wait."""
        if not 0 <= claim.memory <= self.memory:
            raise WrongUse(
                f"the request needs {claim.memory:,} bytes of memory, the store may use {self.memory:,}; "
                "ask for fewer samples at once, or raise the store's memory"
            )
        self._present[claim.client] = self._present.get(claim.client, 0) + 1
        self.queues[claim.rank].push(claim.client, claim)
        self._let_in()

    def leave_slot(self, claim: Claim) -> None:
        if claim.slot:
            claim.slot = False
            self.active -= 1
            self._let_in()

    def grow(self, claim: Claim, extra: int) -> bool:
        """More memory, if it is free and the client is not past its half; never waits."""
        mine = self._held.get(claim.client, 0) + extra
        if claim.over or self.held + extra > self.memory or (self._crowded and mine > self.memory // 2):
            return False
        claim.memory += extra
        self._hold(claim.client, extra)
        self.queues[claim.rank].charge(claim.client, extra)
        return True

    def leave(self, claim: Claim) -> None:
        """Give up waiting, or give everything back; a second time does nothing."""
        if claim.over:
            return
        claim.over = True
        if claim.admitted:
            self.active -= claim.slot
            claim.slot = False
            self._hold(claim.client, -claim.memory)
        else:
            self.queues[claim.rank].drop(claim.client, claim)
        self._present[claim.client] -= 1
        if not self._present[claim.client]:
            del self._present[claim.client]
        self._let_in()

    @property
    def _crowded(self) -> bool:
        return len(self._present) > 1

    def _let_in(self) -> None:
        if not self._present:
            for queue in self.queues:
                queue.forget()
        while self.active < self.requests:
            claim = self._next()
            if claim is None or not self._fits(claim):
                return
            self._admit(claim)

    def _next(self) -> Claim | None:
        for queue in self.queues:
            if queue and (claim := queue.first(self._held_back)) is not None:
                return claim
        return None

    def _held_back(self, claim: Claim) -> bool:
        """By its own client's memory (rule 4); not by that of others."""
        mine = self._held.get(claim.client, 0)
        return self._crowded and min(mine, claim.memory) > 0 and mine + claim.memory > self.memory // 2

    def _fits(self, claim: Claim) -> bool:
        if self._crowded and claim.memory > self.memory // 2:
            return self.held == 0
        return self.held + claim.memory <= self.memory

    def _admit(self, claim: Claim) -> None:
        self.queues[claim.rank].serve(claim.client, max(claim.memory, _LEAST_COST))
        self._hold(claim.client, claim.memory)
        self.active += 1
        claim.slot = claim.admitted = True
        if claim.bell is not None:
            claim.bell.set()

    def _hold(self, client: str, memory: int) -> None:
        self.held += memory
        mine = self._held.get(client, 0) + memory
        if mine:
            self._held[client] = mine
        else:
            self._held.pop(client, None)
