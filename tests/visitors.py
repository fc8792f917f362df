"""Callers at a store's door without the client's good manners: plain Flight, any ticket, any token.

`CALLS` and `routes` are all that a store can be asked, made from what exists, so that nothing is forgotten.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self, get_args
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight
import xxhash

import held
import http2
from headwater import errors
from headwater.errors import HeadwaterError
from headwater.store.server.daemon import Daemon
from headwater.store.server.http import _routes
from headwater.store.wire import messages
from headwater.store.wire.jobmessages import JobQuery, JobStart, JobStop
from headwater.store.wire.messages import (
    ACTIONS,
    SCOPE_OF_ACTION,
    BlocksRequest,
    Complaint,
    FeatureRequest,
    Forget,
    Hello,
    InboxSeal,
    IndexRequest,
    LabelRequest,
    ReadRequest,
    Release,
    Request,
    SelectionRequest,
)
from headwater.store.wire.modelmessages import (
    ModelOffer,
    ModelPart,
    ModelQuery,
    ModelRollback,
    ModelSeal,
    ModelSwitch,
    ModelTake,
)

SCHEMA = pa.schema([("a", pa.int64())])
NOWHERE = flight.FlightDescriptor.for_path("photos")
MODEL = held.held_versions()[1]
BODY = "0" * 32
"""Of what was never sent: a store that holds the version needs nothing of it."""
BODIES = {
    "hello": messages.encode(Hello([1], "0.1")),
    "health": b"",
    "status": b"",
    "release": messages.encode(Release()),
    "models": messages.encode(ModelQuery(held.NAME)),
    "model_offer": messages.encode(ModelOffer(MODEL.to_json(), 1, BODY)),
    "model_part": messages.encode(
        ModelPart(MODEL.digest, BODY, 0, b"x", checksum=xxhash.xxh3_64_intdigest(b"x"))
    ),
    "model_take": messages.encode(ModelTake(MODEL.digest, BODY)),
    "model_switch": messages.encode(ModelSwitch(held.NAME, MODEL.digest)),
    "model_rollback": messages.encode(ModelRollback(held.NAME, BODY)),
    "jobs": messages.encode(JobQuery(["none"])),
    "job_start": messages.encode(JobStart("relabel", "photos", held.NAME, "a visitor's")),
    "job_stop": messages.encode(JobStop(["none"])),
    "inbox_seal": messages.encode(InboxSeal("photos")),
    "forget": messages.encode(Forget("photos", bytes(8), dry_run=True)),
    "model_seal": messages.encode(ModelSeal([BODY])),
}
"""A good body for each action, at a store that holds `held.make_state` and serves `photos`."""
INTERNALS = ("Traceback", 'File "', ".py", "site-packages", "most recent call")
"""What no text that leaves a store may hold."""
FAILURES_OF_FLIGHT = (pa.ArrowException, OSError)
"""`get_schema` fails with an OSError."""
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
"""Otherwise a call may fail because an earlier visitor's did, without a knock at the door."""


class Visitor:
    """Calls with one token, or none. Each call must end within `seconds`."""

    def __init__(self, address: str, token: str | None = None, *, seconds: float = 5.0, **tls: Any) -> None:
        headers = [(b"authorization", f"Bearer {token}".encode())] if token is not None else []
        self.options = flight.FlightCallOptions(timeout=seconds, headers=headers)
        self.flight = flight.FlightClient(address, generic_options=[OWN_CONNECTION], **tls)
        self._by_hand = partial(http2.call, address, token=token, seconds=seconds, **tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flight.close()

    def get(self, ticket: bytes | Request) -> list[pa.RecordBatch]:
        raw = ticket if isinstance(ticket, bytes) else messages.encode(ticket)
        reader = self.flight.do_get(flight.Ticket(raw), self.options)
        return [chunk.data for chunk in reader]

    def act(self, action: str, body: bytes = b"") -> bytes:
        results = self.flight.do_action(flight.Action(action, body), self.options)
        return b"".join(result.body.to_pybytes() for result in results)

    def put(self) -> None:
        writer, _ = self.flight.do_put(NOWHERE, SCHEMA, self.options)
        with writer:
            writer.write_batch(pa.record_batch([pa.array([1])], schema=SCHEMA))

    def exchange(self) -> Any:
        writer, reader = self.flight.do_exchange(NOWHERE, self.options)
        with writer:
            return reader.read_chunk()

    def poll(self) -> bytes:
        """pyarrow has no name for this method, on either side."""
        return self._by_hand("/arrow.flight.protocol.FlightService/PollFlightInfo")


def make_requests(daemon: Daemon, dataset: str, ids: bytes) -> dict[type, Request]:
    """A good request of each kind, for these ids of a dataset."""
    return requests_for(dataset, daemon.serving.datasets[dataset][1], ids)


def requests_for(dataset: str, version: str, ids: bytes) -> dict[type, Request]:
    """The same for a store of which only the version is known; it holds `held.make_state`, and
    `held.keep_selection`."""
    return {
        ReadRequest: ReadRequest(dataset, version, "visitor", ids),
        IndexRequest: IndexRequest(dataset, version, "visitor"),
        BlocksRequest: BlocksRequest(dataset, version, "visitor"),
        FeatureRequest: FeatureRequest(dataset, version, "visitor", ids, MODEL.trunk_digest),
        LabelRequest: LabelRequest(dataset, version, "visitor"),
        SelectionRequest: SelectionRequest(dataset, version, "visitor", held.JOB),
    }


Requests = Mapping[type, Request]
Call = Callable[[Visitor, Requests], object]


def _get(visitor: Visitor, requests: Requests, *, kind: type) -> object:
    return visitor.get(requests[kind])


def _act(visitor: Visitor, _: Requests, *, action: str) -> object:
    return visitor.act(action, BODIES[action] if action in ACTIONS else b"")


STREAMS: dict[str, Call] = {f"do_get {kind.__name__}": partial(_get, kind=kind) for kind in get_args(Request)}
KNOWN_ACTIONS: dict[str, Call] = {f"do_action {action}": partial(_act, action=action) for action in ACTIONS}
NOT_SERVED: dict[str, Call] = {
    "do_action unknown": partial(_act, action="unknown"),
    "do_action ": partial(_act, action=""),
    "do_put": lambda visitor, _: visitor.put(),
    "do_exchange": lambda visitor, _: visitor.exchange(),
    "list_flights": lambda visitor, _: list(visitor.flight.list_flights(b"", visitor.options)),
    "get_flight_info": lambda visitor, _: visitor.flight.get_flight_info(NOWHERE, visitor.options),
    "get_schema": lambda visitor, _: visitor.flight.get_schema(NOWHERE, visitor.options),
    "poll_flight_info": lambda visitor, _: visitor.poll(),
    "handshake": lambda visitor, _: visitor.flight.authenticate_basic_token(b"a", b"b", visitor.options),
}
"""What a store answers to nobody."""
CALLS: dict[str, Call] = {
    **STREAMS,
    **KNOWN_ACTIONS,
    **NOT_SERVED,
    "list_actions": lambda visitor, _: list(visitor.flight.list_actions(visitor.options)),
}
"""Method of Flight, and what of it > how it is called."""
ANY_TOKEN = {f"do_action {name}" for name, scopes in SCOPE_OF_ACTION.items() if not scopes} | {"list_actions"}
"""What tells nothing but that the store is there, and what the token itself opens."""
ANY_READER = {f"do_action {name}" for name, scopes in SCOPE_OF_ACTION.items() if "read" in scopes}
"""What needs the scope, for whatever dataset."""


def routes() -> list[tuple[str, str]]:
    """Verb and path of all that the store's own HTTP application answers; GET means HEAD too."""
    found: list[Any] = _routes(lambda: b"", lambda: False).routes
    return [(verb, route.path) for route in found for verb in sorted(route.methods - {"HEAD"})]


def ask(
    url: str,
    verb: str,
    path: str,
    token: str | None,
    *,
    image: bytes | None = None,
    context: ssl.SSLContext | None = None,
) -> tuple[int, bytes]:
    """Status and body over HTTP; over HTTPS where a context says whom to trust and what to show."""
    place = urlsplit(url)
    host, port = place.hostname or "", place.port
    if context is None:
        connection = http.client.HTTPConnection(host, port, timeout=5)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=5, context=context)
    try:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        headers |= {} if image is None else {"Content-Type": "application/octet-stream"}
        connection.request(verb, path, image, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def text_of(error: BaseException) -> str:
    """All that reached the client."""
    return str(error) + getattr(error, "extra_info", b"").decode("utf-8", "replace")


def complaint_of(error: BaseException) -> Complaint:
    """What the store complains of; fails the test where it is no clean error, or the store's own mistake."""
    assert isinstance(error, flight.FlightError), f"{type(error).__name__}: {error}"
    found = [word for word in INTERNALS if word in text_of(error)]
    assert not found, text_of(error)
    complaint: Complaint = messages.decode(Complaint, error.extra_info)
    kind = getattr(errors, complaint.kind, None)
    assert isinstance(kind, type), complaint
    assert issubclass(kind, HeadwaterError)
    assert not complaint.retry, f"asking again would not help: {complaint}"
    assert "the store failed" not in complaint.text
    return complaint
