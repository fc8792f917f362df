"""Who is next: priorities, and within one priority start-time fair queueing between clients.

Start-time fair queueing is from Goyal, Vin and Cheng (SIGCOMM 1996). Cost is in bytes. A client's tag is
the virtual time at which its next request starts; being served moves it on by the cost, and the lowest
tag is served first. So clients that always wait get equal bytes, whatever the number and the size of
their requests, to within one request each. A client that was idle starts at the present virtual time:
idleness earns no credit.

Tags are charged when a request is served, not when it arrives: a request that is given up costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

PRIORITIES = ("predict", "read", "select", "relabel")  # highest first
_SWEEP = 64  # flows that are always worth keeping; more are swept when they have doubled

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

    @property
    def clients(self) -> frozenset[str]:
        """Those who wait."""
        return frozenset(self._backlog)

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
        self._flows = {
            client: flow for client, flow in self._flows.items() if flow.waiting or flow.tag > self._time
        }
        self._sweep_at = max(_SWEEP, 2 * len(self._flows))
