"""Replies on their way to clients, and an end to those that nobody reads.

Flight's server cannot end a call: its thread waits inside gRPC until the client reads, and a client that sets
no deadline may never do so. What this process can end is the connection, whose socket is its own: gRPC then
ends all calls on it, their threads come free, and so does the memory of their replies.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from headwater.store.server.peers import endpoint_of

log = logging.getLogger("headwater")

_DESCRIPTORS = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


@dataclass(eq=False, slots=True)
class Reply:
    """One reply that waits for its reader; `late` once its connection was ended for it."""

    peer: str
    since: float
    late: bool = False


class Sending:
    """The replies on their way; each may take `seconds`. Safe to use from many threads."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        # No lock: a reply may be closed by the garbage collector, in a thread that would hold it.
        self._replies: dict[int, Reply] = {}

    def __len__(self) -> int:
        return len(self._replies)

    @contextmanager
    def reply(self, peer: str) -> Iterator[Reply]:
        """A reply to this peer is being sent."""
        made = Reply(peer, self._clock())
        self._replies[id(made)] = made
        try:
            yield made
        finally:
            self._replies.pop(id(made), None)

    def end_late(self, port: int) -> int:
        """End the connections to `port` with a reply that was not read in time; how many."""
        overdue = self._clock() - self._seconds
        late = [reply for reply in list(self._replies.values()) if reply.since <= overdue]
        for reply in late:
            reply.late = True
        if not late:
            return 0
        ended = hang_up({reply.peer for reply in late}, port)
        log.warning(
            "%d replies were not read within %g s; %d connections were ended", len(late), self._seconds, ended
        )
        return ended


def hang_up(peers: Collection[str] | None, port: int) -> int:
    """End the connections from these peers, written as gRPC writes them, to `port`; how many there were.

    None means all of them.
    """
    wanted = None if peers is None else {endpoint_of(peer) for peer in peers} - {None}
    ended = 0
    for name in os.listdir(_DESCRIPTORS) if wanted is None or wanted else ():
        with suppress(OSError), _duplicate(int(name)) as link:
            # asked of the duplicate, which nobody can close and replace meanwhile
            peer = endpoint_of(_written(link.getpeername()))
            if link.getsockname()[1] == port and (wanted is None or peer in wanted):
                link.shutdown(socket.SHUT_RDWR)
                ended += 1
    return ended


def _duplicate(descriptor: int) -> socket.socket:
    """Raises `OSError` for what is closed by now, or no socket of the internet."""
    copy = os.dup(descriptor)
    try:
        link = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    if link.family not in (socket.AF_INET, socket.AF_INET6):
        link.close()
        raise OSError(f"descriptor {descriptor} is no connection")
    return link


def _written(name: tuple[str, int]) -> str:
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
