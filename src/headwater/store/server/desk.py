"""What a store answers to requests for samples: read, take some steps if there is CPU to spare, pack.

Under pressure a sample goes out as the file it is: the trainer does the rest. Nothing here knows Flight.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.data.fieldrows import encode_fields
from headwater.data.image import Limits
from headwater.data.index import Index
from headwater.engine.budget import Budget, Busy, Turn, Turnstile
from headwater.engine.fetching import Fetched, fetch_files
from headwater.errors import (
    DatasetNotFound,
    DatasetStale,
    HeadwaterError,
    SampleError,
    SampleTooLarge,
    WrongUse,
)
from headwater.store.loads import Loads, share
from headwater.store.local import LocalStore
from headwater.store.server.ledger import Ledger
from headwater.store.server.pacing import Begun, Pacing, Wish
from headwater.store.server.prefix import Prefix
from headwater.store.wire import messages, payloads
from headwater.store.wire.messages import Complaint, ReadRequest
from headwater.store.wire.payloads import Parcel

log = logging.getLogger("headwater")

T = TypeVar("T")

_PATIENCE = 60.0  # seconds in the queue; the caller's own deadline is usually shorter
_ROW_BYTES = 64


@dataclass(frozen=True)
class Desk:
    """The datasets of a store, and what may be spent on those who ask for them."""

    datasets: Mapping[str, LocalStore]
    budget: Budget
    turnstile: Turnstile
    pacing: Pacing
    prefix: Prefix
    ledger: Ledger
    limits: Limits = field(default_factory=Limits)
    loads: Loads = field(default_factory=Loads)

    def find(self, name: str, version: str) -> LocalStore:
        """Raises `DatasetNotFound`, or `DatasetStale` if the client has another version's index."""
        if name not in self.datasets:
            raise DatasetNotFound(f"no dataset is called {name!r} here")
        store = self.datasets[name]
        if version != store.index.version:
            raise DatasetStale(
                f"dataset {name!r} has version {store.index.version[:12]}, not {version[:12]}; open it again"
            )
        return store

    def read(
        self, request: ReadRequest, caller: str, gone: Callable[[], bool], seal: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """One batch: the samples in the order of the request, whose `seal` goes into their checksums."""
        store = self.find(request.dataset, request.version)
        ids = self._ids(request)
        positions = store.index.position_of(ids)
        size = max(self._weigh(store, positions, request.heads), _ROW_BYTES * len(ids))
        with ExitStack() as stack:
            wish = Wish(caller, request.client, size, gone)
            begun, found = self._take_in(request, store, positions, wish, stack)
            parcel = self._make(request, store, ids, found, begun, gone)
            del found
            noted = _Noted.of(parcel)
            batch = payloads.pack(parcel, seal)
            del parcel
            begun.turn.leave_slot()
            begun.release()
            sending = time.perf_counter()
            yield from self._hand_over(batch)
            if not request.heads:
                noted.write(self.loads, store.index, positions, sending=time.perf_counter() - sending)

    @contextmanager
    def files(
        self, store: LocalStore, positions: NDArray[np.int64], wish: Wish
    ) -> Iterator[tuple[Turn, Fetched]]:
        """The files at these positions, read in their turn, which holds their memory until the block ends."""
        whole = ReadRequest("", "", wish.client, b"")
        with ExitStack() as stack:
            begun, found = self._take_in(whole, store, positions, wish, stack)
            begun.release()  # what is done with them asks for CPU of its own
            yield begun.turn, found

    def weigh(self, store: LocalStore, positions: NDArray[np.int64]) -> int:
        """Bytes that these files are expected to have."""
        return max(min(int(store.index.sizes[positions].sum()), self.budget.request_bytes), _ROW_BYTES)

    def send(
        self, page: Callable[[], Any], who: tuple[str, str], *, size: int, gone: Callable[[], bool]
    ) -> Iterator[Any]:
        """What is no sample, such as a page of the index: in its turn, within the budget of cores and memory.

        `who` is (caller, client). `size` is an estimate of the bytes; what it turns out to be more is taken
        if it is free.
        """
        memory = min(size, self.budget.request_bytes)
        with ExitStack() as stack:
            begun = self._begin(Wish(*who, memory, gone), stack)
            batch, digest = page()
            begun.turn.grow(max(0, batch.nbytes - memory))
            begun.turn.leave_slot()
            begun.release()
            yield from self._hand_over((batch, digest))

    def _hand_over(self, reply: T) -> Iterator[T]:
        begin = time.perf_counter()
        try:
            yield reply
        finally:  # also of a reply that nobody read
            self.ledger.add("headwater_stall_seconds_total", time.perf_counter() - begin, "send")

    def _begin(self, wish: Wish, stack: ExitStack) -> Begun:
        """Wait for cores and a turn, which the stack gives back; what was waited goes into the ledger."""
        begin = time.perf_counter()
        begun = stack.enter_context(self.pacing.begin(wish, self.turnstile, patience=_PATIENCE))
        queued = max(0.0, time.perf_counter() - begin - begun.waited)
        self.ledger.add("headwater_stall_seconds_total", queued, "queue")
        self.ledger.add("headwater_stall_seconds_total", begun.waited, "cores")
        return begun

    def _ids(self, request: ReadRequest) -> NDArray[np.int64]:
        ids = parse_ids(request.ids, self.budget.request_samples)
        lengths = {len(request.cuts), len(request.codecs)}
        if lengths not in ({0}, {len(ids)}):
            raise WrongUse(f"{len(ids)} ids with {len(request.cuts)} cuts and {len(request.codecs)} codecs")
        return ids

    def _weigh(self, store: LocalStore, positions: NDArray[np.int64], heads: int) -> int:
        """Bytes that the answer holds; raises `WrongUse` for more than the store answers at once."""
        sizes = store.index.sizes[positions]
        total = int((np.minimum(sizes, heads) if heads else sizes).sum())
        if total > self.budget.request_bytes and len(positions) > 1:
            raise WrongUse(f"{total:,} bytes at once; this store answers {self.budget.request_bytes:,}")
        return min(total, self.budget.request_bytes)

    def _take_in(
        self,
        request: ReadRequest,
        store: LocalStore,
        positions: NDArray[np.int64],
        wish: Wish,
        stack: ExitStack,
    ) -> tuple[Begun, Fetched]:
        """Begin and read. What was expected to be less, and finds no memory, begins again as what it is."""
        with ExitStack() as mine:
            begun = self._begin(wish, mine)
            found = self._fetch(request, store, positions)
            extra = found.bytes_moved - wish.size
            if extra <= 0 or begun.turn.grow(extra):
                stack.enter_context(mine.pop_all())
                return begun, found
        wish = replace(wish, size=found.bytes_moved)
        del found
        return self._take_in(request, store, positions, wish, stack)

    def _make(
        self,
        request: ReadRequest,
        store: LocalStore,
        ids: NDArray[np.int64],
        found: Fetched,
        begun: Begun,
        gone: Callable[[], bool],
    ) -> Parcel:
        errors = {place: complain(error, store) for place, error in found.failed.items()}
        fields = self._fields(found, errors, store) if request.fields and found.fields else None
        late = sum(isinstance(error, Busy) for error in found.failed.values())
        self.ledger.add("headwater_samples_total", len(errors) - late, "failed")
        if fields is not None:
            self.ledger.add("headwater_bytes_sent_total", sum(map(len, fields)), "fields")
        if not request.cuts:
            self.ledger.add("headwater_bytes_sent_total", found.bytes_moved, "raw")
            self.ledger.add("headwater_samples_total", len(ids) - len(errors), "raw")
            return Parcel(ids, found.values, errors, fields)
        begin = time.perf_counter()
        begun.release()  # or the steps would be pushed back by what was set aside for this very request
        made = self.prefix.run(request, ids, found.values, begun.turn, gone=gone)
        self.ledger.add("headwater_stall_seconds_total", time.perf_counter() - begin, "steps")
        self.prefix.count(made, request, found.values, errors)
        return Parcel(ids, made.payloads, errors, fields, made.facts, made.drawn)

    def _fetch(self, request: ReadRequest, store: LocalStore, positions: NDArray[np.int64]) -> Fetched:
        begin = time.perf_counter()
        cap = min(self.limits.bytes, self.budget.request_bytes)
        setting = "bytes of [limits]" if cap == self.limits.bytes else "request_bytes"
        error = SampleTooLarge(f"more than the {cap:,} bytes that the store sends; raise {setting} there")
        sizes = store.sizes(positions)
        if request.heads:
            found = fetch_files(_Heads(store, min(request.heads, cap), fields=request.fields), positions)
        elif sizes.max(initial=0) > cap:
            found = _without(store, positions, sizes > cap, error)
        else:
            found = fetch_files(store if request.fields else _Files(store), positions)
        if not store.index.exact_sizes:
            found = _bounded(found, cap, self.budget.request_bytes, error)
        self.ledger.add("headwater_stall_seconds_total", time.perf_counter() - begin, "read")
        return found

    def _fields(self, found: Fetched, errors: dict[int, bytes], store: LocalStore) -> list[bytes]:
        encoded = []
        for place in range(len(found.values)):
            try:
                encoded.append(encode_fields(found.fields, place))
            except SampleError as error:
                errors[place] = complain(error, store)
                encoded.append(b"")
        return encoded


@dataclass(frozen=True, eq=False)
class _Noted:
    """Bytes of each sample of a reply, and CPU seconds of the steps that made it."""

    bytes: NDArray[np.float32]
    seconds: NDArray[np.float32]

    @classmethod
    def of(cls, parcel: Parcel) -> _Noted:
        lengths = [
            0 if payload is None or place in parcel.errors else len(payload)
            for place, payload in enumerate(parcel.payloads)
        ]
        seconds = parcel.facts["seconds"] if len(parcel.facts) else np.zeros(len(lengths))
        return cls(np.array(lengths, np.float32), seconds.astype(np.float32))

    def write(self, loads: Loads, index: Index, positions: NDArray[np.int64], *, sending: float) -> None:
        seconds = self.seconds + share(sending, self.bytes)
        loads.note(index, positions, bytes=self.bytes, seconds=seconds)


def parse_ids(data: bytes, most: int) -> NDArray[np.int64]:
    """The ids of a request; raises `WrongUse` for none, for more than `most`, for one that stands twice."""
    count, rest = divmod(len(data), 8)
    if rest or not count:
        raise WrongUse(f"{len(data)} bytes of ids; eight per sample, and at least one sample")
    if count > most:
        raise WrongUse(f"{count:,} samples at once; this store answers {most:,}")
    ids = np.frombuffer(data, "<i8").astype(np.int64)
    ordered = np.sort(ids)
    if (ordered[1:] == ordered[:-1]).any():
        raise WrongUse("an id stands twice in one request")
    return ids


class _Files:
    """A store without its further fields."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def read(self, positions: NDArray[np.int64]) -> Sequence[Any]:
        return self._store.read(positions)

    def read_fields(self, positions: NDArray[np.int64]) -> Mapping[str, Sequence[object]]:
        return {}


class _Heads(_Files):
    def __init__(self, store: LocalStore, length: int, *, fields: bool) -> None:
        super().__init__(store)
        self._length, self._fields = length, fields

    def read(self, positions: NDArray[np.int64]) -> Sequence[Any]:
        return self._store.read_heads(positions, self._length)

    def read_fields(self, positions: NDArray[np.int64]) -> Mapping[str, Sequence[object]]:
        return self._store.read_fields(positions) if self._fields else {}


def _without(
    store: LocalStore, positions: NDArray[np.int64], large: NDArray[np.bool_], error: SampleError
) -> Fetched:
    """The samples that are not too large; the others fail without being read."""
    (kept,) = np.nonzero(~large)
    found = fetch_files(store, positions[kept]) if len(kept) else Fetched([])
    values: list[Any] = [None] * len(positions)
    fields: dict[str, list[object]] = {name: [None] * len(positions) for name in found.fields}
    for place, slot in enumerate(kept.tolist()):
        values[slot] = found.values[place]
        for name, column in found.fields.items():
            fields[name][slot] = column[place]
    failed: dict[int, Exception] = {int(kept[place]): why for place, why in found.failed.items()}
    failed |= {int(slot): error for slot in np.flatnonzero(large)}
    return Fetched(values, fields, failed, bytes_moved=found.bytes_moved)


def _bounded(found: Fetched, cap: int, most: int, error: SampleError) -> Fetched:
    """What was read, where only that tells its size: no sample past the cap, and no more than `most` bytes.

    The samples behind that are to be asked for again; the first of all has room by itself.
    """
    lengths = np.array([0 if value is None else len(value) for value in found.values], np.int64)
    large = lengths > cap
    lengths[large] = 0
    late = np.cumsum(lengths) > most
    if not (large.any() or late.any()):
        return found
    failed = dict(found.failed)
    failed |= {place: error for place in np.flatnonzero(large).tolist()}
    full = Busy(f"the samples before it fill a reply of {most:,} bytes; ask for it again")
    failed |= {place: full for place in np.flatnonzero(late).tolist()}
    values = [None if place in failed else value for place, value in enumerate(found.values)]
    return Fetched(values, found.fields, failed, bytes_moved=int(lengths[~late].sum()))


def complain(error: Exception, store: LocalStore | None = None) -> bytes:
    """An error as it is sent: by its name and text, without where the data lies on the store's disk."""
    if not isinstance(error, HeadwaterError):
        log.error("a request failed", exc_info=error)
        return messages.encode(Complaint("HeadwaterError", "the store failed; its log says why", retry=True))
    text = getattr(error, "reason", None) or str(error)
    for place in () if store is None else _places(store.uri):
        text = text.replace(place, "")
    return messages.encode(Complaint(type(error).__name__, text[:4096], retry=isinstance(error, Busy)))


def _places(uri: str) -> list[str]:
    """Where the data lies, as errors name it: folders of a dataset, and those that its files are in."""
    found = set()
    for line in uri.splitlines():
        fixed = re.split(r"[*?\[{]", line)[0]
        found |= {line.rstrip("/") + "/", fixed[: fixed.rfind("/") + 1]}
    return sorted((place for place in found if len(place) > 1), key=len, reverse=True)
