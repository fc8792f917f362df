"""The edge to Arrow Flight: who calls, what they may do, and errors that tell nothing but themselves.

Every method that Flight has is answered or refused here; each first asks the guard. An exception that is
not Flight's would send its traceback to the client, so all of them are caught at this edge.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from headwater.engine.budget import Busy, Gone
from headwater.errors import HeadwaterError, Incompatible, Refused
from headwater.store.server.audit import AuditLog
from headwater.store.server.desk import Desk
from headwater.store.server.guard import Caller, Guard
from headwater.store.server.ledger import Ledger
from headwater.store.server.peers import host_of
from headwater.store.server.talk import Talk
from headwater.store.wire import messages, pages
from headwater.store.wire.messages import (
    ACTIONS,
    SCOPE_OF_ACTION,
    BlocksRequest,
    Complaint,
    IndexRequest,
    ReadRequest,
)
from headwater.store.wire.payloads import CUT, RAW, seal_of

log = logging.getLogger("headwater")

P = ParamSpec("P")
T = TypeVar("T")

_TEXT_BYTES = 1000
"""Of an error: a client's gRPC drops a reply whose headers are long, and then reports a lost link."""

BLOCKS = pa.schema([pa.field("start", pa.int64(), nullable=False)])


class _Headers(flight.ServerMiddleware):  # type: ignore[misc]
    """Holds the token of one call, for as long as the call lasts."""

    def __init__(self, authorization: str | None) -> None:
        self.authorization = authorization


class _HeadersFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> _Headers:
        if info.method == flight.FlightMethod.GET_SCHEMA:
            # Alone among the methods, pyarrow's own code sends the traceback of whatever this one raises.
            raise flight.FlightUnauthorizedError("this store shows nobody a schema")
        given = headers.get("authorization") or [None]
        return _Headers(given[0] if isinstance(given[0], str) else None)


def _at_the_edge(method: Callable[P, T]) -> Callable[P, T]:
    @functools.wraps(method)
    def guarded(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return method(*arguments, **named)
        except Exception as error:
            raise translate(error) from None

    return guarded


def translate(error: Exception) -> Any:
    """The Flight error that a client may see."""
    if isinstance(error, flight.FlightError):
        return error
    if isinstance(error, Gone):
        return flight.FlightCancelledError("the caller hung up")
    if isinstance(error, Busy):
        text = str(error)
        return flight.FlightServerError(text, messages.encode(Complaint("Busy", text, retry=True)))
    if isinstance(error, HeadwaterError):
        text = clip(str(error))
        return flight.FlightServerError(text, messages.encode(Complaint(type(error).__name__, text)))
    reference = os.urandom(4).hex()
    log.error("a request failed (%s)", reference, exc_info=error)
    text = f"the store failed; its log says why at {reference}"
    return flight.FlightServerError(text, messages.encode(Complaint("HeadwaterError", text, retry=True)))


def clip(text: str) -> str:
    """As much of it as fits where gRPC carries it, twice, and with each byte written as three."""
    return text if len(text) * 4 <= _TEXT_BYTES else text.encode()[:_TEXT_BYTES].decode(errors="ignore")


class Service(flight.FlightServerBase):  # type: ignore[misc]
    """A desk and its talk behind Flight."""

    def __init__(
        self, location: str, desk: Desk, talk: Talk, guard: Guard, *, audit: AuditLog, **tls: Any
    ) -> None:
        self._desk, self._talk, self._guard, self._audit = desk, talk, guard, audit
        self._ledger: Ledger = desk.ledger
        super().__init__(location, middleware={"headers": _HeadersFactory()}, **tls)

    @_at_the_edge
    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        caller = self._caller(context)
        self._check_open()
        request = messages.decode_request(ticket.ticket)
        self._check(caller, "read", request.dataset)
        self._ledger.add("headwater_requests_total", 1, str(type(request).__struct_config__.tag))
        if isinstance(request, ReadRequest):
            batches = self._read(request, caller, context, seal_of(ticket.ticket))
            return flight.GeneratorStream(CUT if request.cuts else RAW, batches)
        if isinstance(request, IndexRequest):
            return self._index(request)
        return self._blocks(request, seal_of(ticket.ticket))

    def _read(
        self, request: ReadRequest, caller: Caller, context: flight.ServerCallContext, seal: int
    ) -> Iterator[pa.RecordBatch]:
        client = f"{caller.name}@{host_of(caller.peer)}/{request.client}"
        samples, outcome = len(request.ids) // 8, "ok"
        sent = 0
        self._talk.begin(client)
        try:
            for batch in self._desk.read(request, client, context.is_cancelled, seal):
                sent = batch.nbytes
                yield batch
        except GeneratorExit:
            outcome = "hung up"
            raise
        except Exception as error:
            outcome = type(error).__name__
            raise translate(error) from None
        finally:
            self._talk.end()
            self._audit.read(caller, request.dataset, samples=samples, bytes=sent, outcome=outcome)

    def _index(self, request: IndexRequest) -> flight.GeneratorStream:
        index = self._desk.find(request.dataset, request.version).index
        schema = pages.index_schema(index, first=not request.start)
        batch, digest = pages.index_page(index, request.start, request.rows, schema)
        self._ledger.add("headwater_bytes_sent_total", batch.nbytes, "index")
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        return flight.GeneratorStream(schema, iter([(batch, digest)]), options=options)

    def _blocks(self, request: BlocksRequest, seal: int) -> flight.GeneratorStream:
        found = self._desk.find(request.dataset, request.version).blocks()
        starts = np.zeros(0, np.int64) if found is None else found
        batch = pa.RecordBatch.from_arrays([pa.array(starts, pa.int64())], schema=BLOCKS)
        return flight.GeneratorStream(BLOCKS, iter([(batch, pages.blocks_digest(starts, seal))]))

    @_at_the_edge
    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        caller = self._caller(context)
        if action.type not in ACTIONS:
            raise HeadwaterError(f"no action is called {action.type[:64]!r}; known: {', '.join(ACTIONS)}")
        scope = SCOPE_OF_ACTION[action.type]
        if scope is not None:
            self._check(caller, scope)
        self._ledger.add("headwater_requests_total", 1, action.type)
        if action.type == "hello":
            self._check_open()
        body = action.body.to_pybytes() if action.body.size <= messages.MOST_TICKET_BYTES else b""
        answer = self._talk.answer(action.type, body, caller)
        if scope is not None:
            self._audit.event(action.type, caller)
        return [flight.Result(pa.py_buffer(answer))]

    @_at_the_edge
    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        self._caller(context)
        return list(ACTIONS.items())

    @_at_the_edge
    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[Any]:
        self._offer_nothing(context)

    @_at_the_edge
    def get_flight_info(self, context: flight.ServerCallContext, descriptor: Any) -> Any:
        self._offer_nothing(context)

    @_at_the_edge
    def get_schema(self, context: flight.ServerCallContext, descriptor: Any) -> Any:
        self._offer_nothing(context)  # never reached: `_HeadersFactory` refuses it

    @_at_the_edge
    def do_put(self, context: flight.ServerCallContext, descriptor: Any, reader: Any, writer: Any) -> None:
        self._offer_nothing(context)

    @_at_the_edge
    def do_exchange(
        self, context: flight.ServerCallContext, descriptor: Any, reader: Any, writer: Any
    ) -> None:
        self._offer_nothing(context)

    def _offer_nothing(self, context: flight.ServerCallContext) -> NoReturn:
        self._caller(context)
        raise Incompatible("this store does not speak that part of Flight; see the wire format's page")

    def _caller(self, context: flight.ServerCallContext) -> Caller:
        held = context.get_middleware("headers")
        try:
            return self._guard.identify(held.authorization if held else None, context.peer())
        except Refused as error:
            self._ledger.add("headwater_refused_total", 1, "token")
            raise flight.FlightUnauthenticatedError(str(error)) from None

    def _check(self, caller: Caller, scope: str, dataset: str | None = None) -> None:
        try:
            self._guard.check(caller, scope, dataset)
        except Refused as error:
            self._ledger.add("headwater_refused_total", 1, "scope")
            raise flight.FlightUnauthorizedError(str(error)) from None

    def _check_open(self) -> None:
        if self._talk.draining:
            raise flight.FlightUnavailableError(
                "the store is draining; ask a replica, or wait until it is back"
            )
