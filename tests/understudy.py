"""A real Flight server that plays a store by a test's script: it answers, fails, stalls or complains."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.link import Link
from headwater.store.wire import messages
from headwater.store.wire.messages import Complaint, Request

Answer = Callable[["Understudy", Request], list[Any]]
"""Batches, or pairs of a batch and what goes beside it; may raise what Flight knows."""
Act = Callable[[bytes], bytes]


class _Headers(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self.token = token


class _HeadersFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Headers:
        return _Headers(headers.get("authorization", [""])[0])


class Understudy(flight.FlightServerBase):  # type: ignore[misc]
    """Each request is answered by the next entry of `script`, and by `usual` once that is empty."""

    def __init__(self, usual: Answer, actions: dict[str, Act] | None = None) -> None:
        super().__init__("grpc://127.0.0.1:0", middleware={"headers": _HeadersFactory()})
        self.usual = usual
        self.actions = actions or {}
        self.script: deque[Answer] = deque()
        self.asked: list[Request] = []
        self.tokens: list[str] = []
        self.accepts: str | None = None
        self.over = threading.Event()
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def connect(self, link: Link | None = None, secret: Secret | None = None) -> Connection:
        return Connection(Address.parse(self.uri), secret or Secret(None, {}), link or Link())

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.GeneratorStream:
        token = context.get_middleware("headers").token
        with self._lock:
            self.tokens.append(token)
            self.asked.append(messages.decode_request(ticket.ticket))
            answer = self.script.popleft() if self.script else self.usual
        if self.accepts is not None and token != f"Bearer {self.accepts}":
            raise flight.FlightUnauthenticatedError("this token does not let you in")
        batches = answer(self, self.asked[-1])
        first = batches[0][0] if isinstance(batches[0], tuple) else batches[0]
        return flight.GeneratorStream(first.schema, iter(batches))

    def do_action(self, context: Any, action: flight.Action) -> list[flight.Result]:
        return [flight.Result(pa.py_buffer(self.actions[action.type](action.body.to_pybytes())))]


@contextmanager
def playing(usual: Answer, actions: dict[str, Act] | None = None) -> Iterator[Understudy]:
    """A server for the length of a test; whatever it stalls goes on at the end."""
    server = Understudy(usual, actions)
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()


def be_gone(server: Understudy, request: Request) -> list[Any]:
    raise flight.FlightUnavailableError("not here")


def stall(server: Understudy, request: Request) -> list[Any]:
    """Say nothing until the test is over; the client has its own deadline."""
    server.over.wait(30)
    raise flight.FlightUnavailableError("over")


def complain(kind: str, text: str, *, retry: bool = False) -> Answer:
    def answer(server: Understudy, request: Request) -> list[Any]:
        raise flight.FlightServerError(text, messages.encode(Complaint(kind, text, retry)))

    return answer
