"""A proxy with plain sockets at both ends."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from headwater.cli.proxy import Proxy

PATIENCE_SECONDS = 10.0
QUIET_SECONDS = 0.15
"""Long enough to see that nothing comes; too short for it can only hide a defect, never make a test fail."""


@dataclass
class Wire:
    """A proxy before a server that each test plays by hand."""

    proxy: Proxy
    server: socket.socket
    stack: contextlib.ExitStack

    def dial(self) -> tuple[socket.socket, socket.socket]:
        """A connection through the proxy: the client's end and the server's."""
        client = self.call()
        accepted = self.stack.enter_context(self.server.accept()[0])
        accepted.settimeout(PATIENCE_SECONDS)
        return client, accepted

    def call(self) -> socket.socket:
        return self.stack.enter_context(socket.create_connection(self.proxy.address, PATIENCE_SECONDS))


@contextlib.contextmanager
def wires() -> Iterator[Callable[..., Wire]]:
    """Makes a wire from the options of a proxy; all that it made is closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Wire:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            server.settimeout(PATIENCE_SECONDS)
            return Wire(stack.enter_context(Proxy(server.getsockname(), **options)), server, stack)

        yield make


def read_exactly(end: socket.socket, count: int) -> bytes:
    parts = []
    while count and (part := end.recv(min(count, 1 << 16))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def read_all(end: socket.socket) -> bytes:
    return read_exactly(end, 1 << 40)


def expect_silence(end: socket.socket) -> None:
    end.settimeout(QUIET_SECONDS)
    with pytest.raises(TimeoutError):
        end.recv(1)
    end.settimeout(PATIENCE_SECONDS)


def expect_reset(end: socket.socket) -> None:
    with pytest.raises(ConnectionResetError):
        read_all(end)


def send_in_thread(end: socket.socket, data: bytes) -> threading.Thread:
    def send() -> None:
        with contextlib.suppress(OSError):
            end.sendall(data)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def directed(
    direction: str, ends: tuple[socket.socket, socket.socket]
) -> tuple[socket.socket, socket.socket]:
    """Who sends and who receives in that direction."""
    client, server = ends
    return (client, server) if direction == "up" else (server, client)


def ping(wire: Wire) -> float:
    """Seconds for a byte there and back, on a connection of its own."""
    client, server = wire.dial()
    began = time.monotonic()
    client.sendall(b"x")
    assert server.recv(1) == b"x"
    server.sendall(b"y")
    assert client.recv(1) == b"y"
    return time.monotonic() - began
