"""One store on the wire: a Flight client that is made anew when its connection hangs.

Flight's calls block until their deadline and cannot be interrupted while nothing has come back, so they
run in threads that nobody waits for. An answer is put into the asker's queue, whatever it is.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from headwater.engine.crew import Daemons
from headwater.errors import ForkedUse, HeadwaterError, Refused, error_named
from headwater.store.client.address import Address, Secret
from headwater.store.client.link import Link
from headwater.store.wire import messages
from headwater.store.wire.messages import Complaint

Reply = list[tuple[pa.RecordBatch, Any]]
"""The batches of a stream, each with what came beside it."""
GRACE = 0.3  # seconds past the deadline after which a call is given up although it has not returned
_MOST_THREADS = 64
_CLIENTS = 2  # connections: Flight works through one with one core
_MOST_REPLY = 1 << 30
_OPTIONS = (
    ("grpc.max_receive_message_length", _MOST_REPLY),
    # A connection of its own, so that a new client is a new connection, and quick to try again.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # An errand asks again itself; gRPC's own retries were seen to crash the process at a deadline.
    ("grpc.enable_retries", 0),
)


class _Flight:
    """Which process has used Flight: it does not survive a fork, not even for new connections."""

    pid: int | None = None


_flight = _Flight()


class Passing(HeadwaterError):
    """A failure that may pass: the same request may be answered later, or by a replica."""


class Later(Passing):
    """The store itself asks to be asked again; its connection is sound."""


class TimedOut(Passing):
    """No answer within the deadline."""


class Call:
    """A request under way. It ends with `answer` or `error` set, and itself in the asker's queue.

    `accept` makes the answer of the reply: in the thread that received it, whose caches still hold it.
    """

    def __init__(
        self, connection: Connection, answers: SimpleQueue[Any], accept: Callable[[Reply], Any]
    ) -> None:
        self.connection = connection
        self._accept = accept
        self.begun = time.monotonic()
        self.latency = 0.0
        self.answer: Any = None
        self.error: Exception | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.cancelled = False
        self._answers = answers
        self._reader: Any = None
        self._client: flight.FlightClient | None = None

    def cancel(self) -> None:
        """Nobody wants the answer any more."""
        self.cancelled = True
        reader = self._reader
        if reader is not None:
            reader.cancel()

    def give_up(self) -> None:
        """Nobody waits for it any more, and what it was sent through may hang: use that no longer."""
        self.cancel()
        if self._client is not None:
            self.connection.renew(self._client)

    def run(self, client: flight.FlightClient, ticket: bytes, options: flight.FlightCallOptions) -> None:
        self._client = client
        try:
            self._reader = reader = client.do_get(flight.Ticket(ticket), options)
            self.latency = time.monotonic() - self.begun
            if self.cancelled:
                reader.cancel()
            reply = _read_all(reader)
        except BaseException as error:  # a cancelled read may come as KeyboardInterrupt
            self.error = translate(error, self.connection.address)
        else:
            self._take(reply)
        finally:
            self._reader = None
            self._answers.put(self)

    def _take(self, reply: Reply) -> None:
        try:
            self.answer = None if self.cancelled else self._accept(reply)
        except Exception as error:  # for the asker
            self.error = error


class Connection:
    """A store at one address. Safe to use from many threads; nothing is opened before the first call."""

    def __init__(self, address: Address, secret: Secret, link: Link) -> None:
        self.address = address
        self.secret = secret
        self.link = link
        self._lock = threading.Lock()
        self._clients: list[flight.FlightClient | None] = [None] * _CLIENTS
        self._turn = 0
        self._pid = os.getpid()
        self.samples = 0
        """That it has answered for, in all."""
        self._threads = Daemons(
            _MOST_THREADS, "headwater-link", closed="this dataset was closed; open it again"
        )
        weakref.finalize(self, self._threads.shutdown)

    def begin(self, ticket: bytes, answers: SimpleQueue[Any], accept: Callable[[Reply], Any]) -> Call:
        """Send a request; its `Call` comes back through `answers`."""
        call = Call(self, answers, accept)
        self._threads.submit(self._run, call, ticket)
        return call

    def act(self, action: str, body: bytes = b"") -> bytes:
        """Have the store do something small and wait for it. Raises `Passing`, `Refused` or what it says."""
        self.check()
        results: SimpleQueue[bytes | Exception] = SimpleQueue()
        self._threads.submit(self._act, action, body, results.put)
        try:
            found = results.get(timeout=self.link.deadline_seconds + GRACE)
        except Empty:
            self.renew()
            raise TimedOut(f"{self.address.place} did not answer in time") from None
        if isinstance(found, Exception):
            raise found
        return found

    def count(self, samples: int) -> None:
        """It has answered for so many more."""
        with self._lock:
            self.samples += samples

    def renew(self, stale: flight.FlightClient | None = None) -> None:
        """Forget the connection: the next call makes a new one. Calls under way keep the old one."""
        with self._lock:
            for place, client in enumerate(self._clients):
                if stale is None or client is stale:
                    self._clients[place] = None

    def close(self) -> None:
        self.renew()
        self._threads.shutdown()

    def check(self) -> None:
        """Raise in a forked child of a process that has used Flight, where it would hang without end."""
        begun = _flight.pid or self._pid
        if os.getpid() != begun:
            raise ForkedUse(
                f"a store was opened by process {begun} and one is used in its forked child {os.getpid()}, "
                "where connections hang; start the child with multiprocessing's 'spawn' method"
            )

    def _run(self, call: Call, ticket: bytes) -> None:
        try:
            client = self._connect()
        except Exception as error:
            call.error = translate(error, self.address)
            call._answers.put(call)
            return
        call.headers = self.secret.headers
        call.run(client, ticket, self._call_options(call.headers))
        if not call.cancelled:
            self._doubt(client, call.error)

    def _act(self, action: str, body: bytes, answer: Callable[[bytes | Exception], None]) -> None:
        client = None
        try:
            client = self._connect()
            results = list(
                client.do_action(flight.Action(action, body), self._call_options(self.secret.headers))
            )
            answer(results[0].body.to_pybytes())
        except BaseException as error:
            known = translate(error, self.address)
            self._doubt(client, known)
            answer(known)

    def _doubt(self, client: flight.FlightClient | None, error: Exception | None) -> None:
        """Begin anew: both ends remember headers, and one that was altered on the way would stay so."""
        if client is not None and error is not None and not isinstance(error, Later):
            self.renew(client)

    def _call_options(self, headers: list[tuple[bytes, bytes]]) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=self.link.deadline_seconds, headers=headers)

    def _connect(self) -> flight.FlightClient:
        """The clients take turns; one that is missing is made."""
        with self._lock:
            self._turn = (self._turn + 1) % _CLIENTS
            client = self._clients[self._turn]
            if client is None:
                client = self._clients[self._turn] = self._make_client()
            return client

    def _make_client(self) -> flight.FlightClient:
        _flight.pid = os.getpid()
        tls: dict[str, Any] = {}
        if self.address.scheme == "grpc+tls":
            tls = {
                "tls_root_certs": self.link.read(self.link.ca),
                "cert_chain": self.link.read(self.link.cert),
                "private_key": self.link.read(self.link.key),
            }
        return flight.FlightClient(self.address.location, generic_options=list(_OPTIONS), **tls)


def translate(error: BaseException, address: Address) -> Exception:
    """What a failed call means: a passing failure, a refusal, or what the store complained of."""
    text = _first_line(error)
    if isinstance(error, HeadwaterError):
        return error
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return Refused(f"{address.place} refuses: {text}")
    if isinstance(error, flight.FlightTimedOutError):
        return TimedOut(f"{address.place} did not answer in time")
    extra = getattr(error, "extra_info", b"")
    if extra and not isinstance(error, flight.FlightUnavailableError):
        return _complaint(extra, address)
    return Passing(f"{address.place}: {text}")


def _complaint(extra: bytes, address: Address) -> Exception:
    try:
        complaint: Complaint = messages.decode(Complaint, extra)
    except HeadwaterError as error:
        return Passing(f"{address.place}: {error}")
    if complaint.retry:
        return Later(f"{address.place}: {complaint.text}")
    made = error_named(complaint.kind, complaint.text) or HeadwaterError(complaint.text)
    made.add_note(f"said by store {address.place}")
    return made


def _first_line(error: BaseException) -> str:
    """gRPC adds pages of details."""
    text = str(error).partition("\n")[0].partition(". gRPC client debug context")[0]
    return text.partition(". Client context")[0][:500] or type(error).__name__


def _read_all(reader: Any) -> Reply:
    """All batches, with what came beside them. Not `read_all`: a cancelled one raises KeyboardInterrupt."""
    found: Reply = []
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return found
        found.append((chunk.data, chunk.app_metadata))
