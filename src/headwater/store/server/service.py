"""The edge to Arrow Flight: who calls, what they may do, and errors that tell nothing but themselves.

Every method that Flight has is answered or refused here; each first asks the guard. An exception that is
not Flight's would send its traceback to the client, so all of them are caught at this edge.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from headwater.engine.budget import Busy, Gone
from headwater.errors import HeadwaterError, Incompatible, Refused, Unreachable
from headwater.store.server.audit import AuditLog
from headwater.store.server.desk import Desk
from headwater.store.server.features import FeatureDesk
from headwater.store.server.guard import Caller, Guard
from headwater.store.server.labeldesk import LabelDesk
from headwater.store.server.ledger import Ledger
from headwater.store.server.noting import ADDED_UP, facts_in
from headwater.store.server.peers import limited_address
from headwater.store.server.selected import SelectionDesk
from headwater.store.server.sending import Sending
from headwater.store.server.talk import Stay, Talk
from headwater.store.wire import labelpages, messages, pages
from headwater.store.wire.messages import (
    ACTIONS,
    CHANGES,
    SCOPE_OF_ACTION,
    BlocksRequest,
    Complaint,
    FeatureRequest,
    IndexRequest,
    LabelRequest,
    ReadRequest,
    Request,
    SelectionRequest,
)
from headwater.store.wire.payloads import CUT, RAW, seal_of

log = logging.getLogger("headwater")

P = ParamSpec("P")
T = TypeVar("T")

_TEXT_BYTES = 1000
"""Of an error: a client's gRPC drops a reply whose headers are long, and then reports a lost link."""

_INDEX_ROW_BYTES = 64  # an estimate

_METHODS = frozenset(
    {
        flight.FlightMethod.HANDSHAKE,
        flight.FlightMethod.LIST_FLIGHTS,
        flight.FlightMethod.GET_FLIGHT_INFO,
        flight.FlightMethod.DO_GET,
        flight.FlightMethod.DO_PUT,
        flight.FlightMethod.DO_ACTION,
        flight.FlightMethod.LIST_ACTIONS,
        flight.FlightMethod.DO_EXCHANGE,
    }
)
"""Those that reach a method below, where the guard is asked."""

BLOCKS = pa.schema([pa.field("start", pa.int64(), nullable=False)])


class _Headers(flight.ServerMiddleware):  # type: ignore[misc]
    """Holds the token of one call, for as long as the call lasts."""

    def __init__(self, authorization: str | None) -> None:
        self.authorization = authorization


@dataclass(frozen=True)
class _Call:
    """A request that was let in, and whose it is."""

    request: Request
    caller: Caller
    gone: Callable[[], bool]
    seal: int
    stay: Stay

    @property
    def action(self) -> str:
        return str(type(self.request).__struct_config__.tag)

    @property
    def samples(self) -> int:
        return len(self.request.ids) // 8 if isinstance(self.request, ReadRequest | FeatureRequest) else 0

    @property
    def who(self) -> tuple[str, str]:
        """Between whom shares are fair: whom the store tells apart, and the name that a client chose."""
        return _party(self.caller), self.request.client


def _party(caller: Caller) -> str:
    return f"{caller.name}@{limited_address(caller.peer)}"


class _HeadersFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> _Headers:
        if info.method == flight.FlightMethod.GET_SCHEMA:
            # Alone among the methods, pyarrow's own code sends the traceback of whatever this one raises.
            raise flight.FlightUnauthorizedError("this store shows nobody a schema")
        if info.method not in _METHODS:  # such as PollFlightInfo, which pyarrow does not pass on to a service
            raise flight.FlightUnauthorizedError("this store does not speak that part of Flight")
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
    if isinstance(error, HeadwaterError) and not isinstance(error, Unreachable):
        text = clip(str(error))
        return flight.FlightServerError(text, messages.encode(Complaint(type(error).__name__, text)))
    # also a bucket that does not answer: it may later, or a replica may have another one
    reference = os.urandom(4).hex()
    log.error("a request failed (%s)", reference, exc_info=error)
    text = f"the store failed; its log says why at {reference}"
    return flight.FlightServerError(text, messages.encode(Complaint("HeadwaterError", text, retry=True)))


def clip(text: str) -> str:
    """As much of it as fits where gRPC carries it, twice, and with each byte written as three."""
    return text if len(text) * 4 <= _TEXT_BYTES else text.encode()[:_TEXT_BYTES].decode(errors="ignore")


def _compressed() -> pa.ipc.IpcWriteOptions:
    return pa.ipc.IpcWriteOptions(compression="zstd")


class Service(flight.FlightServerBase):  # type: ignore[misc]
    """A desk and its talk behind Flight."""

    def __init__(
        self,
        location: str,
        desk: Desk,
        talk: Talk,
        guard: Guard,
        *,
        features: FeatureDesk,
        labels: LabelDesk,
        selections: SelectionDesk,
        audit: AuditLog,
        sending: Sending,
        **tls: Any,
    ) -> None:
        self._desk, self._talk, self._guard, self._audit = desk, talk, guard, audit
        self._features, self._labels, self._selections = features, labels, selections
        self._sending = sending
        self._ledger: Ledger = desk.ledger
        super().__init__(location, middleware={"headers": _HeadersFactory()}, **tls)

    @_at_the_edge
    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        caller = self._caller(context)
        self._check_open()
        request = messages.decode_request(ticket.ticket)
        self._check(caller, "read", request.dataset)
        stay = self._talk.begin(f"{_party(caller)}/{request.client}")
        call = _Call(request, caller, context.is_cancelled, seal_of(ticket.ticket), stay)
        try:
            self._check_open()  # again: a drain does not wait for what was counted after it began
            self._ledger.add("headwater_requests_total", 1, call.action)
            return self._stream(call)
        except Exception as error:
            stay.end()
            self._note(call, 0, type(error).__name__)
            raise

    def _stream(self, call: _Call) -> flight.GeneratorStream:
        request = call.request
        if isinstance(request, ReadRequest):
            batches = self._desk.read(request, call.who[0], call.gone, call.seal)
            return flight.GeneratorStream(CUT if request.cuts else RAW, self._send(call, batches))
        if isinstance(request, FeatureRequest):
            found = self._features.read(request, call.who[0], call.gone, call.seal)
            return flight.GeneratorStream(RAW, self._send(call, found))
        if isinstance(request, LabelRequest):
            rows = self._labels.read(request, call.who[0], call.gone, call.seal)
            return flight.GeneratorStream(labelpages.SCHEMA, self._send(call, rows), options=_compressed())
        if isinstance(request, SelectionRequest):
            chosen = self._selections.find(request)
            page = self._selections.read(chosen, request, call.who[0], call.gone, call.seal)
            return flight.GeneratorStream(chosen.schema, self._send(call, page))
        if isinstance(request, IndexRequest):
            return self._index(request, call)
        return self._blocks(request, call)

    def _send(self, call: _Call, batches: Iterable[Any]) -> Iterator[Any]:
        """Pass them on, and note how it ended."""
        outcome, sent = "ok", 0
        try:
            for item in batches:
                sent += (item[0] if isinstance(item, tuple) else item).nbytes
                with self._sending.reply(call.caller.peer) as reply:
                    yield item
        except GeneratorExit:
            outcome = "not read" if reply.late else "hung up"
            raise
        except Exception as error:
            outcome = type(error).__name__
            raise translate(error) from None
        finally:
            call.stay.end()
            self._note(call, sent, outcome)

    def _note(self, call: _Call, sent: int, outcome: str) -> None:
        self._audit.read(
            call.caller,
            call.request.dataset,
            samples=call.samples,
            bytes=sent,
            outcome=outcome,
            action=call.action,
        )

    def _index(self, request: IndexRequest, call: _Call) -> flight.GeneratorStream:
        index = self._desk.find(request.dataset, request.version).index
        schema = pages.index_schema(index, first=not request.start)

        def page() -> tuple[pa.RecordBatch, bytes]:
            batch, digest = pages.index_page(index, request.start, request.rows, schema)
            self._ledger.add("headwater_bytes_sent_total", batch.nbytes, "index")
            return batch, digest

        rows = min(request.rows or pages.ROWS, pages.ROWS, len(index))
        sent = self._send(call, self._desk.send(page, call.who, size=rows * _INDEX_ROW_BYTES, gone=call.gone))
        return flight.GeneratorStream(schema, sent, options=_compressed())

    def _blocks(self, request: BlocksRequest, call: _Call) -> flight.GeneratorStream:
        found = self._desk.find(request.dataset, request.version).blocks()
        starts = np.zeros(0, np.int64) if found is None else found

        def page() -> tuple[pa.RecordBatch, bytes]:
            batch = pa.RecordBatch.from_arrays([pa.array(starts, pa.int64())], schema=BLOCKS)
            self._ledger.add("headwater_bytes_sent_total", batch.nbytes, "index")
            return batch, pages.blocks_digest(starts, call.seal)

        batches = self._desk.send(page, call.who, size=starts.nbytes, gone=call.gone)
        return flight.GeneratorStream(BLOCKS, self._send(call, batches))

    @_at_the_edge
    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        caller = self._caller(context)
        if action.type not in ACTIONS:
            raise HeadwaterError(f"no action is called {action.type[:64]!r}; known: {', '.join(ACTIONS)}")
        if scopes := SCOPE_OF_ACTION[action.type]:
            self._refuse(lambda: self._guard.check_any(caller, scopes))
        self._ledger.add("headwater_requests_total", 1, action.type)
        if action.type == "hello":
            self._check_open()
        body = action.body.to_pybytes() if action.body.size <= messages.MOST_TICKET_BYTES else b""
        try:
            answer = self._act(action.type, body, caller)
        except Exception as error:
            self._note_action(action.type, body, caller, type(error).__name__)
            raise
        self._note_action(action.type, body, caller, "ok")
        return [flight.Result(pa.py_buffer(answer))]

    def _act(self, action: str, body: bytes, caller: Caller) -> bytes:
        if action not in CHANGES:
            return self._talk.answer(action, body, caller)
        stay = self._talk.begin()
        try:
            self._check_open()  # after it was counted: a drain waits for it, or it is refused
            return self._talk.answer(action, body, caller)
        finally:
            stay.end()

    def _note_action(self, action: str, body: bytes, caller: Caller, outcome: str) -> None:
        if action in ADDED_UP:
            size = len(body) if action in CHANGES else 0
            self._audit.read(caller, "", samples=0, bytes=size, outcome=outcome, action=action)
        elif SCOPE_OF_ACTION[action]:
            self._audit.event(action, caller, dataset="", outcome=outcome, **facts_in(action, body))

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
        self._refuse(lambda: self._guard.check(caller, scope, dataset))

    def _refuse(self, check: Callable[[], None]) -> None:
        try:
            check()
        except Refused as error:
            self._ledger.add("headwater_refused_total", 1, "scope")
            raise flight.FlightUnauthorizedError(str(error)) from None

    def _check_open(self) -> None:
        if self._talk.draining:
            raise flight.FlightUnavailableError(
                "the store is draining; ask a replica, or wait until it is back"
            )
