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
4. While other callers wait or are inside, one caller holds at most half of the memory; while other clients
   of the same caller do, one client holds at most half of what its caller may. With `halve_slots` the same
   goes for slots, or long requests of one would fill them all. A request that would take them past that is
   held back without blocking the others: its caller, or its client, waits for its own replies to be made
   and read. A request for more than half of the memory is let in when nothing at all is held.
5. Those inside may grow from free memory ahead of those who wait: they were let in first, nobody enters
   meanwhile, and what they finish is what drains.
6. A queue has an end, and so has the number of requests of one caller, waiting or inside: each
   holds a thread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from headwater.engine.budget.fairness import PRIORITIES, NestedQueue
from headwater.errors import WrongUse

_LEAST_COST = 4096  # bytes; a request is work even if it asks for no memory


@dataclass(eq=False, slots=True)
class Claim:
    """One request: it waits, then is inside, then is over."""

    caller: str
    rank: int  # place of its priority in PRIORITIES
    memory: int  # bytes asked for, with what it has grown by
    client: str = ""  # within the caller
    admitted: bool = False
    slot: bool = False
    over: bool = False
    bell: threading.Event | None = None  # rung when it is let in; only a caller that has to wait makes one


class Admission:
    """Who is inside and who waits. Every change lets in whom it makes room for."""

    def __init__(self, requests: int, memory: int, *, halve_slots: bool = False) -> None:
        if requests < 1 or memory < 1:
            raise WrongUse(f"{requests} requests and {memory} bytes of memory; both must be 1 or more")
        self.requests, self.memory, self._halve_slots = requests, memory, halve_slots
        self.active = self.held = 0
        self.queues: list[NestedQueue[Claim]] = [NestedQueue() for _ in PRIORITIES]
        self._callers: dict[str, _Party] = {}  # those with requests, waiting or inside

    def ask(self, claim: Claim) -> None:
        """Let a request in if its turn is now, else make it wait."""
        if not 0 <= claim.memory <= self.memory:
            raise WrongUse(
                f"the request needs {claim.memory:,} bytes of memory, the store may use {self.memory:,}; "
                "ask for fewer samples at once, or raise the store's memory"
            )
        party = self._callers.get(claim.caller)
        if party is None:
            party = self._callers[claim.caller] = _Party()
        party.come(claim.client)
        self.queues[claim.rank].push(claim.caller, claim.client, claim)
        self._let_in()

    @property
    def waiting(self) -> int:
        return sum(map(len, self.queues))

    def present(self, caller: str) -> int:
        """Requests of a caller, waiting or inside."""
        party = self._callers.get(caller)
        return party.requests if party else 0

    def leave_slot(self, claim: Claim) -> None:
        if claim.slot:
            self._free(claim)
            self._let_in()

    def grow(self, claim: Claim, extra: int) -> bool:
        """More memory, if it is free and neither caller nor client is past its half; never waits."""
        if claim.over or self.held + extra > self.memory:
            return False
        party = self._callers[claim.caller]
        if party.held + extra > self._share or party.holds(claim.client) + extra > party.share(self._share):
            return False
        claim.memory += extra
        self._hold(claim, extra)
        self.queues[claim.rank].charge(claim.caller, claim.client, extra)
        return True

    def leave(self, claim: Claim) -> None:
        """Give up waiting, or give everything back; a second time does nothing."""
        if claim.over:
            return
        claim.over = True
        if claim.admitted:
            if claim.slot:
                self._free(claim)
            self._hold(claim, -claim.memory)
        else:
            self.queues[claim.rank].drop(claim.caller, claim.client, claim)
        party = self._callers[claim.caller]
        party.go(claim.client)
        if not party.requests:
            del self._callers[claim.caller]
        self._let_in()

    @property
    def _crowded(self) -> bool:
        return len(self._callers) > 1

    @property
    def _share(self) -> int:
        """What one caller may hold."""
        return self.memory // 2 if self._crowded else self.memory

    @property
    def _slots(self) -> int:
        """What one caller may have of them."""
        return self.requests // 2 if self._crowded else self.requests

    def _lacks_slot(self, slots: int, share: int) -> bool:
        return self._halve_slots and _is_past(slots, 1, share)

    def _let_in(self) -> None:
        if not self._callers:
            for queue in self.queues:
                queue.forget()
        while self.active < self.requests:
            claim = self._next()
            if claim is None or not self._fits(claim):
                return
            self._admit(claim)

    def _next(self) -> Claim | None:
        for queue in self.queues:
            if queue and (claim := queue.first(self._client_waits, self._caller_waits)) is not None:
                return claim
        return None

    def _client_waits(self, claim: Claim) -> bool:
        """Held back by what its own client has (rule 4); not by that of others."""
        party = self._callers[claim.caller]
        return _is_past(party.holds(claim.client), claim.memory, party.share(self._share)) or (
            self._lacks_slot(party.works(claim.client), party.share(self._slots))
        )

    def _caller_waits(self, claim: Claim) -> bool:
        party = self._callers[claim.caller]
        return self._crowded and (
            _is_past(party.held, claim.memory, self._share) or self._lacks_slot(party.slots, self._slots)
        )

    def _fits(self, claim: Claim) -> bool:
        if self._crowded and claim.memory > self.memory // 2:
            return self.held == 0
        return self.held + claim.memory <= self.memory

    def _admit(self, claim: Claim) -> None:
        self.queues[claim.rank].serve(claim.caller, claim.client, max(claim.memory, _LEAST_COST))
        self._hold(claim, claim.memory)
        self.active += 1
        self._callers[claim.caller].work(claim.client, 1)
        claim.slot = claim.admitted = True
        if claim.bell is not None:
            claim.bell.set()

    def _free(self, claim: Claim) -> None:
        claim.slot = False
        self.active -= 1
        self._callers[claim.caller].work(claim.client, -1)

    def _hold(self, claim: Claim, memory: int) -> None:
        self.held += memory
        self._callers[claim.caller].hold(claim.client, memory)


class _Party:
    """One caller: its requests, and the memory and slots that they hold, by client."""

    __slots__ = ("_clients", "_held", "_slots", "held", "requests", "slots")

    def __init__(self) -> None:
        self.requests = self.held = self.slots = 0
        self._clients: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self._slots: dict[str, int] = {}

    def come(self, client: str) -> None:
        self.requests += 1
        self._clients[client] = self._clients.get(client, 0) + 1

    def go(self, client: str) -> None:
        self.requests -= 1
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]
            self._held.pop(client, None)
            self._slots.pop(client, None)

    def hold(self, client: str, memory: int) -> None:
        self.held += memory
        self._held[client] = self._held.get(client, 0) + memory

    def holds(self, client: str) -> int:
        return self._held.get(client, 0)

    def work(self, client: str, slots: int) -> None:
        self.slots += slots
        self._slots[client] = self._slots.get(client, 0) + slots

    def works(self, client: str) -> int:
        return self._slots.get(client, 0)

    def share(self, whole: int) -> int:
        """What one client may have where the caller may have `whole`."""
        return whole // 2 if len(self._clients) > 1 else whole


def _is_past(held: int, more: int, share: int) -> bool:
    """Whether more would be too much; what holds nothing yet, or asks for nothing, is never held back."""
    return min(held, more) > 0 and held + more > share
