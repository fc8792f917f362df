"""A TCP proxy that makes loopback a link: with a rate and a delay for the demo, with faults for the tests.

It needs no root. Every byte of both directions is counted, TLS included; the headers of TCP and IP, which
are 3 to 4 % of a real link, are neither counted nor limited.

    python -m headwater.cli.proxy --to 127.0.0.1:8815 --rate 100mbit --delay 50ms
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self

from headwater.cli.faults import Fault, Shape, Standing
from headwater.cli.lane import TICK_SECONDS, Road
from headwater.cli.passage import Passage, Server, close, prepare
from headwater.errors import HeadwaterError, Unreachable, WrongUse

__all__ = ["Fault", "Proxy", "Shape", "main"]

CALL_SECONDS = 10.0
"""Far more than any call into the event loop takes; who waits longer has found a defect."""

UNLIMITED = Shape()
Script = Callable[[int], Sequence[Fault]] | Sequence[Sequence[Fault]]
Address = tuple[str, int]


class Proxy:
    """Listens on loopback and passes every connection on to `upstream`, shaped, with faults.

    `faults` gives those of the n-th connection, from 0: a function of n, or a sequence that holds them in
    order. An event loop runs in a thread of its own from `start` (or `with`) to `close`; all methods may
    be called from any other thread and return when what they ask for is in force. The same `seed` gives
    the same jitter.
    """

    def __init__(
        self,
        upstream: Address,
        *,
        shape: Shape = UNLIMITED,
        faults: Script = (),
        port: int = 0,
        seed: int = 0,
    ) -> None:
        self.upstream, self.port = upstream, port
        self._script = faults
        self._road = Road(shape, seed=seed, clock=time.monotonic)
        self._accepted = 0
        self._open: set[Passage] = set()
        self._standing: list[Standing] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> Address:
        return "127.0.0.1", self.port

    @property
    def shape(self) -> Shape:
        return self._road.shape

    @property
    def bytes_up(self) -> int:
        """Bytes passed on to the server."""
        return self._road.passed["up"]

    @property
    def bytes_down(self) -> int:
        """Bytes passed on to the clients."""
        return self._road.passed["down"]

    @property
    def connections(self) -> int:
        """How many were accepted, those that a fault refused among them."""
        return self._accepted

    @property
    def cpu_seconds(self) -> float:
        """CPU of the thread that passes bytes on, which is none of the process's own work."""
        if self._loop is None or self._thread.ident is None or not self._thread.is_alive():
            raise WrongUse("this proxy does not run; use it inside `with`, or between start and close")
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))

    def start(self) -> Self:
        """Listen; raises `Unreachable` where `upstream` has no address or the port is taken."""
        if self._loop is not None:
            raise WrongUse(f"this proxy was already started, on port {self.port}; make another")
        try:
            self._server = _find_server(self.upstream)
            self._listener = _listen(self.port)
        except OSError as error:
            raise Unreachable(f"no proxy from port {self.port} to {self.upstream}: {error}") from error
        self.port = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._call(self._begin())
        return self

    def close(self) -> None:
        """Reset what is open and end; no thread and no socket is left. Closing again does nothing."""
        if self._loop is None or self._loop.is_closed():
            return
        self._call(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS)
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def reshape(self, shape: Shape) -> None:
        """Change the link; bytes already on their way keep their time of arrival."""
        self._call(self._reshape(shape))

    def inject(self, fault: Fault) -> None:
        """Strike every open connection, and every new one while the fault lasts.

        Times count from now; `after_bytes` from where a stream is now, for a new connection from its
        beginning. A fault that strikes once reaches new connections only if it is given `seconds`.
        """
        self._call(self._inject(fault))

    def heal(self) -> None:
        """End the faults that were injected, and all that open connections have; the script goes on."""
        self._call(self._heal())

    def cut(self) -> None:
        """Reset every open connection now."""
        self._call(self._cut())

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise WrongUse("this proxy does not run; use it inside `with`, or between start and close")
        asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)

    async def _begin(self) -> None:
        self._watch()

    async def _finish(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        await self._cut()

    async def _reshape(self, shape: Shape) -> None:
        self._road.reshape(shape)

    async def _inject(self, fault: Fault) -> None:
        self._standing.append(Standing(fault, time.monotonic() + (fault.at_seconds or 0.0)))
        for passage in self._open:
            passage.plan(fault)

    async def _heal(self) -> None:
        self._standing.clear()
        for passage in self._open:
            passage.heal()

    async def _cut(self) -> None:
        for passage in self._open:
            passage.end("reset")
        if self._open:
            await asyncio.wait([passage.task for passage in self._open])

    def _watch(self) -> None:
        # Not a task that awaits `sock_accept`: cancelled at the wrong moment it loses a socket.
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
            self._admit(client)
        except (BlockingIOError, ConnectionAbortedError):  # the client is gone
            return
        except OSError:  # no descriptor is free: others may come when one is
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._listener)
            loop.call_later(TICK_SECONDS, self._watch)

    def _admit(self, client: socket.socket) -> None:
        number, self._accepted = self._accepted, self._accepted + 1
        now = time.monotonic()
        self._standing = [standing for standing in self._standing if standing.until > now]
        faults = [*self._find_script(number), *(standing.rest(now) for standing in self._standing)]
        if any(fault.kind == "refuse" for fault in faults):
            close(client, ending="reset")
            return
        try:
            passage = Passage(client, self._road, number=number, server=self._server)
        except OSError:
            close(client, ending="reset")
            raise
        self._open.add(passage)
        passage.start(faults).add_done_callback(lambda _: self._open.discard(passage))

    def _find_script(self, number: int) -> Sequence[Fault]:
        if callable(self._script):
            return self._script(number)
        return self._script[number] if number < len(self._script) else ()


def _find_server(address: Address) -> Server:
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    return found[0], found[4]


def _listen(port: int) -> socket.socket:
    listener = prepare(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def _parse(text: str, pattern: str, units: dict[str, float]) -> float:
    found = re.fullmatch(pattern, text.lower())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number with one of the units {', '.join(units)}")
    return float(found[1]) * units[found[2]]


def parse_rate(text: str) -> float:
    """`100mbit` as bits per second."""
    return _parse(text, r"([\d.]+)([kmg]?bit)", {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9})


def parse_time(text: str) -> float:
    """`50ms` as seconds."""
    return _parse(text, r"([\d.]+)(m?s)", {"ms": 1e-3, "s": 1.0})


def parse_address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def main(words: Sequence[str] | None = None) -> int:
    """Print the port, and run until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m headwater.cli.proxy", description="A link on loopback.")
    parser.add_argument("--to", type=parse_address, required=True, metavar="HOST:PORT")
    parser.add_argument("--rate", type=parse_rate, default=None, metavar="100mbit")
    parser.add_argument("--delay", type=parse_time, default=0.0, metavar="50ms", help="one way")
    parser.add_argument("--jitter", type=parse_time, default=0.0, metavar="5ms")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    asked = parser.parse_args(words)
    try:
        _serve(Proxy(asked.to, shape=Shape(asked.rate, asked.delay, asked.jitter), port=asked.port))
    except HeadwaterError as error:
        print(f"proxy: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _serve(proxy: Proxy) -> None:
    # Blocked before the thread starts, which inherits it: so the signal waits here and nowhere else.
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with proxy:
        print(proxy.port, flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    sys.exit(main())
