"""Who is next: priorities, and within one priority start-time fair queueing between clients.

Start-time fair queueing is from Goyal, Vin and Cheng (SIGCOMM 1996). Cost is in bytes. A client's tag is
the virtual time at which its next request starts; being served moves it on by the cost, and the lowest
tag is served first. So clients that always wait get equal bytes, whatever the number and the size of
their requests, to within one request each. A client that was idle starts at the present virtual time:
idleness earns no credit.

Tags are charged when a request is served, not when it arrives: a request that is given up costs nothing.

There are two levels. Shares are between callers, whom the store itself tells apart; within a caller they are
between its clients, whose names the clients choose. So inventing names divides a caller's share, and does not
add to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

PRIORITIES = ("predict", "read", "select", "relabel")  # highest first
_SWEEP = 64  # flows that are always worth keeping; more are swept when they have doubled
_MOST_FLOWS = 4096  # beyond this, who does not wait is forgotten with what he owes

T = TypeVar("T")


class Flow(Generic[T]):
    """The requests of one client that wait in one queue, first come first served."""

    __slots__ = ("serial", "tag", "waiting")

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self.serial = 0  # among equal tags, the one that has been at the front of its flow for longest
        self.waiting: deque[T] = deque()


class FairQueue(Generic[T]):
    """One priority's requests. Knows nothing of slots and memory; not for several threads."""

    def __init__(self) -> None:
        self._time = 0  # the virtual time: the highest tag that has been served
        self._serial = 0
        self._flows: dict[str, Flow[T]] = {}
        self._backlog: dict[str, Flow[T]] = {}  # the flows in which somebody waits
        self._sweep_at = _SWEEP
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, client: str) -> bool:
        """Whether anything is known of this client, waiting or not."""
        return client in self._flows

    def push(self, client: str, item: T) -> None:
        """Put a request at the end of its client's flow."""
        flow = self._flows.get(client)
        if flow is None:
            self._sweep()
            flow = self._flows[client] = Flow(self._time)
        if not flow.waiting:
            flow.tag = max(flow.tag, self._time)
            self._to_front(flow)
            self._backlog[client] = flow
        flow.waiting.append(item)
        self._length += 1

    def first(self, held_back: Callable[[T], bool]) -> T | None:
        """The front request with the lowest tag, of those that are not held back by their own client.

        Who is held back by himself keeps no claim to what the others get meanwhile.
        """
        best: Flow[T] | None = None
        for flow in self._backlog.values():
            if held_back(flow.waiting[0]):
                flow.tag = max(flow.tag, self._time)
            elif best is None or (flow.tag, flow.serial) < (best.tag, best.serial):
                best = flow
        return best.waiting[0] if best else None

    def serve(self, client: str, cost: int) -> T:
        """Take the front request of a client out, and charge the client."""
        flow = self._flows[client]
        item = flow.waiting[0]
        self._time = max(self._time, flow.tag)
        flow.tag += cost
        self.drop(client, item)
        return item

    def charge(self, client: str, cost: int) -> None:
        """More cost than was known when the client was served."""
        if client in self._flows:
            self._flows[client].tag += cost

    def drop(self, client: str, item: T) -> None:
        """Take a request out that is given up; it costs nothing."""
        flow = self._flows[client]
        if flow.waiting[0] is item:
            flow.waiting.popleft()
            self._to_front(flow)
        else:
            flow.waiting.remove(item)
        self._length -= 1
        if not flow.waiting:
            del self._backlog[client]

    def forget(self) -> None:
        """Start anew; right when all is idle, as every client would start at the same tag anyway."""
        self._flows.clear()
        self._time, self._sweep_at = 0, _SWEEP

    def _to_front(self, flow: Flow[T]) -> None:
        self._serial += 1
        flow.serial = self._serial

    def _sweep(self) -> None:
        """Drop flows that owe nothing, now and then, so that names of clients long gone do not pile up."""
        if len(self._flows) < self._sweep_at:
            return
        kept = {client: flow for client, flow in self._flows.items() if flow.waiting or flow.tag > self._time}
        if len(kept) > _MOST_FLOWS:
            # names that each come once all start at the present: the time never passes their tags
            kept = dict(self._backlog)
        self._flows = kept
        self._sweep_at = max(_SWEEP, 2 * len(self._flows))


class NestedQueue(Generic[T]):
    """One priority's requests, fair between callers, and within each caller between its clients."""

    def __init__(self) -> None:
        self._callers: FairQueue[str] = FairQueue()  # a caller's name for each of its requests
        self._clients: dict[str, FairQueue[T]] = {}

    def __len__(self) -> int:
        return len(self._callers)

    def push(self, caller: str, client: str, item: T) -> None:
        if caller not in self._clients:
            self._sweep()
            self._clients[caller] = FairQueue()
        self._callers.push(caller, caller)
        self._clients[caller].push(client, item)

    def first(self, client_waits: Callable[[T], bool], caller_waits: Callable[[T], bool]) -> T | None:
        """Who is next, of those that neither their client nor their caller holds back.

        Where a caller is held back by the request that is its first, all its requests are: else its small
        ones would keep a large one out for ever.
        """
        fronts: dict[str, T] = {}

        def held_back(caller: str) -> bool:
            front = self._clients[caller].first(client_waits)
            if front is None or caller_waits(front):
                return True
            fronts[caller] = front
            return False

        chosen = self._callers.first(held_back)
        return None if chosen is None else fronts[chosen]

    def serve(self, caller: str, client: str, cost: int) -> T:
        self._callers.serve(caller, cost)
        return self._clients[caller].serve(client, cost)

    def charge(self, caller: str, client: str, cost: int) -> None:
        self._callers.charge(caller, cost)
        if caller in self._clients:
            self._clients[caller].charge(client, cost)

    def drop(self, caller: str, client: str, item: T) -> None:
        self._callers.drop(caller, caller)
        self._clients[caller].drop(client, item)

    def forget(self) -> None:
        self._callers.forget()
        self._clients.clear()

    def _sweep(self) -> None:
        if len(self._clients) >= _SWEEP:
            self._clients = {name: queue for name, queue in self._clients.items() if name in self._callers}
