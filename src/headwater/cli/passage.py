"""One connection through the proxy: its two sockets, a lane each way, and the ways in which it can end."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from headwater.cli.faults import Direction, Fault
from headwater.cli.lane import READ_BYTES, Ending, Lane, Road

SOCKET_BYTES = 128 << 10
PARTING_SECONDS = 0.5
"""How long an end of a truncated connection may take to close its own side."""

Server = tuple[int, Any]
"""Address family and address, as `socket.getaddrinfo` gives them."""


class Passage:
    """A client, the server, and a lane each way."""

    def __init__(self, client: socket.socket, road: Road, *, number: int, server: Server) -> None:
        family, self._address = server
        self._client, self._upstream = prepare(client), prepare(socket.socket(family, socket.SOCK_STREAM))
        self._ending: Ending = "close"
        names: tuple[Direction, ...] = ("up", "down")
        self._lanes = {name: Lane(road, name, number=number, end=self.end) for name in names}
        self._timers: list[asyncio.TimerHandle] = []

    def start(self, faults: Sequence[Fault]) -> asyncio.Task[None]:
        self.task = asyncio.create_task(self._run())
        # Not in a `finally` of the task: one that is cancelled before its first step runs nothing at all.
        self.task.add_done_callback(self._close)
        for fault in faults:
            self.plan(fault)
        return self.task

    def plan(self, fault: Fault) -> None:
        """Let a fault strike in its time, counted from now."""
        for name, lane in self._lanes.items():
            if fault.affects(name) and fault.kind != "refuse":
                if fault.at_seconds:
                    loop = asyncio.get_running_loop()
                    self._timers.append(loop.call_later(fault.at_seconds, lane.arm, fault))
                else:
                    lane.arm(fault)

    def heal(self) -> None:
        """End the faults that last, and forget those to come."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for lane in self._lanes.values():
            lane.heal()

    def end(self, ending: Ending) -> None:
        """End it now: bytes on their way are lost."""
        self._ending = ending
        self.task.cancel()

    async def _run(self) -> None:
        try:
            await asyncio.get_running_loop().sock_connect(self._upstream, self._address)
            await self._carry()
        except OSError:
            self._ending = "reset"
        except asyncio.CancelledError:
            await self._part()

    async def _carry(self) -> None:
        up, down = self._lanes["up"], self._lanes["down"]
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(up.read(self._client))
                group.create_task(up.write(self._upstream))
                group.create_task(down.read(self._upstream))
                group.create_task(down.write(self._client))
        except* OSError:
            self._ending = "reset"

    async def _part(self) -> None:
        """Say goodbye to both ends: a socket closed with bytes unread would send a reset instead."""
        if self._ending == "reset":
            return
        # Or the timeout below would take the old cancellation for a new one.
        self.task.uncancel()
        with suppress(OSError, TimeoutError):
            for end in (self._client, self._upstream):
                end.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(PARTING_SECONDS):
                await asyncio.gather(_drain(self._client), _drain(self._upstream))

    def _close(self, _task: asyncio.Task[None]) -> None:
        self.heal()
        for end in (self._client, self._upstream):
            close(end, ending=self._ending)


def prepare(end: socket.socket) -> socket.socket:
    """Small buffers, so that what is on its way is in the proxy's hands, and no waiting for full packets."""
    end.setblocking(False)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        end.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
    return end


def close(end: socket.socket, *, ending: Ending) -> None:
    if ending == "reset":
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


async def _drain(end: socket.socket) -> None:
    with suppress(OSError):
        while await asyncio.get_running_loop().sock_recv(end, READ_BYTES):
            pass
