"""Callers at a store's door without the client's good manners: plain Flight, any ticket, any token."""

from __future__ import annotations

from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as flight

from headwater import errors
from headwater.errors import HeadwaterError
from headwater.store.server.daemon import Daemon
from headwater.store.wire import messages
from headwater.store.wire.messages import (
    BlocksRequest,
    Complaint,
    Hello,
    IndexRequest,
    ReadRequest,
    Release,
    Request,
)

SCHEMA = pa.schema([("a", pa.int64())])
NOWHERE = flight.FlightDescriptor.for_path("photos")
BODIES = {
    "hello": messages.encode(Hello([1], "0.1", "visitor")),
    "health": b"",
    "status": b"",
    "release": messages.encode(Release()),
}
"""A good body for each action."""
INTERNALS = ("Traceback", 'File "', ".py", "site-packages", "most recent call")
"""What no text that leaves a store may hold."""


class Visitor:
    """Calls with one token, or none. Each call must end within `seconds`."""

    def __init__(self, address: str, token: str | None = None, *, seconds: float = 5.0, **tls: Any) -> None:
        headers = [(b"authorization", f"Bearer {token}".encode())] if token is not None else []
        self.options = flight.FlightCallOptions(timeout=seconds, headers=headers)
        self.flight = flight.FlightClient(address, **tls)

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


def make_requests(daemon: Daemon, dataset: str, ids: bytes) -> dict[type, Request]:
    """A good request of each kind, for these ids of a dataset."""
    version = daemon.serving.datasets[dataset][1]
    return {
        ReadRequest: ReadRequest(dataset, version, "visitor", ids),
        IndexRequest: IndexRequest(dataset, version, "visitor"),
        BlocksRequest: BlocksRequest(dataset, version, "visitor"),
    }


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
