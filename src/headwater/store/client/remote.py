"""A dataset that lies behind a link: the same store as the local one, for everyone who holds it."""

from __future__ import annotations

import threading
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.data.fieldrows import decode_fields
from headwater.data.index import Index
from headwater.engine.chain import Chain
from headwater.engine.fetching import Costs, Fetched, Packed, Reader, Wanted
from headwater.errors import HeadwaterError, SampleCorrupt, SampleError, StoreLost, error_named
from headwater.plan.offload import Offload
from headwater.store.base import Site
from headwater.store.client.cutting import Cutting, Opened, agree
from headwater.store.client.errand import Abandoned, Errand, Errands, TooSlow, locate
from headwater.store.client.replicas import Replica, Replicas
from headwater.store.client.traffic import Traffic
from headwater.store.wire import messages, pages, payloads
from headwater.store.wire.messages import BlocksRequest, Complaint, DatasetFacts, ReadRequest, Welcome
from headwater.store.wire.payloads import Damaged, Parcel

_READERS = 8
_FEW = 0.1  # of a request's samples: if no more are to be cut, it is the link that it waits for


@dataclass(frozen=True)
class Remote:
    """What is known of a dataset once its stores have greeted: its name there, its facts, its index.

    `welcomes` are what each replica said, by its name.
    """

    name: str
    facts: DatasetFacts
    welcomes: Mapping[str, Welcome]
    index: Index

    @cached_property
    def request_bytes(self) -> int:
        """What every replica answers at once, and so `request_samples`."""
        return min(welcome.request_bytes for welcome in self.welcomes.values())

    @cached_property
    def request_samples(self) -> int:
        return min(welcome.request_samples for welcome in self.welcomes.values())

    @property
    def cores(self) -> float:
        """Of one replica, that which has the fewest."""
        return min(welcome.cores for welcome in self.welcomes.values())


class RemoteStore:
    """The samples of one dataset, from one store or from replicas. Safe to use from many threads."""

    remote = True
    readers = _READERS

    def __init__(self, replicas: Replicas, known: Remote) -> None:
        self.replicas = replicas
        self.known = known
        self.client = uuid.uuid4().hex[:16]
        self.traffic = Traffic()

    @property
    def retries(self) -> int:
        """Requests that failed and were sent again, or that a replica answered instead."""
        return sum(replica.failures for replica in self.replicas.all)

    @property
    def index(self) -> Index:
        return self.known.index

    @property
    def uri(self) -> str:
        addresses = [replica.connection.address for replica in self.replicas.all]
        return "\n".join(f"{address.location}/{self.known.name}" for address in addresses)

    @property
    def cached_bytes(self) -> int | None:
        return self.known.facts.cached_bytes

    def sizes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.index.sizes[positions] if self.index.exact_sizes else np.zeros(len(positions), np.int64)

    def key(self, position: int) -> str:
        return self.index.key(position)

    def read(self, positions: NDArray[np.int64]) -> Sequence[Any]:
        return self._read(positions).values

    def read_heads(self, positions: NDArray[np.int64], length: int) -> Sequence[Any]:
        return self._read(positions, heads=length).values

    def read_fields(self, positions: NDArray[np.int64]) -> Mapping[str, Sequence[object]]:
        return self._read(positions, heads=1, fields=True).fields if self.known.facts.fields else {}

    def reader(self, chain: Chain, ways: Sequence[Offload]) -> Reader:
        fields = bool(self.known.facts.fields)
        if not any(way.cut for way in ways):
            return RemoteReader(self, fields=fields)
        cutting = self._cutting(chain, ways)
        return RemoteReader(self, fields=fields, cutting=cutting if cutting.reach else None)

    def sites(self, chain: Chain, ways: Sequence[Offload]) -> tuple[Site, ...]:
        found = self._cutting(chain, ways).ways
        possible = np.array([one == other for one, other in zip(found, ways, strict=True)], np.bool_)
        cores = self.known.cores * len(self.replicas.all)
        return (Site(self.replicas.names, possible, cores, self.traffic.read),)

    def site_of(self, positions: NDArray[np.int64]) -> NDArray[np.intp]:
        return np.zeros(len(positions), np.intp)

    def _cutting(self, chain: Chain, ways: Sequence[Offload]) -> Cutting:
        return Cutting.of(chain, ways, self.known.welcomes)

    def compare_steps(self) -> None:
        agree(self.known.welcomes)

    def blocks(self) -> NDArray[np.int64] | None:
        return self._blocks if self.known.facts.blocks else None

    def close(self) -> None:
        self.replicas.close()

    @cached_property
    def _blocks(self) -> NDArray[np.int64]:
        ticket = messages.encode(BlocksRequest(self.known.name, self.index.version, self.client))
        seal = payloads.seal_of(ticket)
        try:
            return Errand(self.replicas, ticket, lambda reply: _accept_blocks(reply, seal)).run()
        except StoreLost as error:
            raise locate(error, self.known.name, 0, "fetching the blocks") from error

    def _read(self, positions: NDArray[np.int64], *, heads: int = 0, fields: bool = False) -> Fetched:
        """All or an error: for those who want a few samples and not a run."""
        positions = np.asarray(positions, np.int64)
        found = RemoteReader(self, fields=fields, heads=heads).fetch(
            Wanted(positions, self.index.ids[positions])
        )
        for error in found.failed.values():
            raise error
        return found


class RemoteReader:
    """Reads for one run: what it asks for, and how to stop it."""

    def __init__(
        self, store: RemoteStore, *, fields: bool = False, heads: int = 0, cutting: Cutting | None = None
    ) -> None:
        self._store, self._fields, self._heads = store, fields, heads
        self.cutting = cutting
        self._lock = threading.Lock()
        self._errands = Errands()

    def sizes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._store.sizes(positions)

    def key(self, position: int) -> str:
        return self._store.key(position)

    def abandon(self) -> None:
        self._errands.abandon()

    def fetch(self, wanted: Wanted) -> Fetched:
        # another thread may lose its trust while requests are under way
        return self._fetch(wanted, self.cutting, self._store.replicas)

    def _fetch(self, wanted: Wanted, cutting: Cutting | None, among: Replicas) -> Fetched:
        parts = self._divide(wanted, cutting, among)
        return parts[0] if len(parts) == 1 else join(parts)

    def _divide(self, wanted: Wanted, cutting: Cutting | None, among: Replicas) -> list[Fetched]:
        """Ask in pieces that the store takes and that end before their deadline."""
        sizes = self._weights(wanted.positions)
        waiting = [np.arange(len(wanted.ids))] if len(wanted.ids) else []
        begun = time.monotonic()
        found: list[tuple[int, Fetched]] = []
        while waiting:
            places = waiting.pop()
            if len(places) > 1 and self._too_much(sizes[places]):
                waiting += [places[len(places) // 2 :], places[: len(places) // 2]]
                continue
            piece = wanted.take(places)
            try:
                answer = self._ask(piece, cutting, among, size=int(sizes[places].sum()), begun=begun)
            except TooSlow:
                waiting += [places[len(places) // 2 :], places[: len(places) // 2]]
                continue
            begun = time.monotonic()  # an answer: the limit counts from here
            found.append((int(places[0]), answer))
            if len(answer.values) < len(places):
                waiting.append(places[len(answer.values) :])
        return [part for _, part in sorted(found, key=lambda entry: entry[0])]

    def _weights(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        sizes = self._store.index.sizes[positions]
        return np.minimum(sizes, self._heads) if self._heads else sizes

    def _too_much(self, sizes: NDArray[np.int64]) -> bool:
        known = self._store.known
        # What one request should be at most is a wish: half as much again does not divide it.
        wish = 1.5 * max(replica.window.request_bytes for replica in self._store.replicas.all)
        return len(sizes) > known.request_samples or int(sizes.sum()) > min(known.request_bytes, wish)

    def _ask(
        self, wanted: Wanted, cutting: Cutting | None, among: Replicas, *, size: int, begun: float
    ) -> Fetched:
        """What a store sends for these samples, or for the first of them, and others for what it cannot give.

        Samples whose payload is of no use are fetched once more, as files; that asks others by itself.
        """
        request = self._request(wanted, cutting)
        parcel, replica = self._send(request, wanted, among, size=size, begun=begun)
        count = _answered(parcel)
        parcel, given = parcel.first(count), wanted.take(slice(count))
        opened = None if cutting is None or not request.cuts else cutting.open(parcel, given, request)
        if opened is not None and opened.wrong:
            self._distrust(replica, opened.wrong)
            return self._fetch(given, None, among)
        found = _collect(parcel, opened, given, replica.name)
        for other in among.others(replica):
            if found.failed:
                found = self._ask_another(found, given, other)
        return self._fetch_again(found, given, among, [] if opened is None else opened.again)

    def _send(
        self, request: ReadRequest, wanted: Wanted, among: Replicas, *, size: int, begun: float
    ) -> tuple[Parcel, Replica]:
        """A store's answer, and which store's it is."""
        ticket = messages.encode(request)
        cut, seal = bool(request.cuts), payloads.seal_of(ticket)
        errand: Errand[Parcel] = Errand(
            among,
            ticket,
            lambda reply: accept(reply, wanted.ids, cut=cut, seal=seal),
            size=size,
            divisible=len(wanted.ids) > 1,
            begun=begun,
        )
        parcel = self._run(errand, request, wanted)
        assert errand.answered_by is not None
        errand.answered_by.connection.count(len(wanted.ids))
        return parcel, errand.answered_by

    def _run(self, errand: Errand[Parcel], request: ReadRequest, wanted: Wanted) -> Parcel:
        try:
            with self._store.traffic.awaiting(files=_mostly_files(request)):
                parcel = self._errands.run(errand)
                self._store.traffic.count(parcel.bytes)
                return parcel
        except StoreLost as error:
            position, epoch = int(wanted.positions[0]), wanted.epoch
            raise locate(error, self._store.known.name, position, f"epoch {epoch}") from error

    def _ask_another(self, found: Fetched, wanted: Wanted, other: Replicas) -> Fetched:
        """With what another store has of the samples that were not to be had, as files.

        What it says of them stands, with what was said before as a note; if it does not answer, that does.
        """
        places = np.array(sorted(found.failed), np.intp)
        try:
            files = self._fetch(wanted.take(places), None, other)
        except Abandoned:
            raise
        except HeadwaterError as error:
            for before in found.failed.values():
                before.add_note(f"store {other.names} was asked too: {error}")
            return found
        for place, last in files.failed.items():
            last.add_note(f"before that: {_with_notes(found.failed[int(places[place])])}")
        if found.costs is not None and files.costs is not None:
            found.costs.put(places, files.costs)
        return _replaced(found, places, files)

    def _fetch_again(self, found: Fetched, wanted: Wanted, among: Replicas, again: Sequence[int]) -> Fetched:
        """With the files of samples that came and could not be opened."""
        if not again:
            return found
        places = np.array(again, np.intp)
        return _replaced(found, places, self._fetch(wanted.take(places), None, among))

    def _request(self, wanted: Wanted, cutting: Cutting | None) -> ReadRequest:
        request = ReadRequest(
            dataset=self._store.known.name,
            version=self._store.index.version,
            client=self._store.client,
            ids=np.ascontiguousarray(wanted.ids, "<i8").tobytes(),
            epoch=wanted.epoch,
            heads=self._heads,
            fields=self._fields,
        )
        return request if cutting is None else cutting.apply(request, wanted)

    def _distrust(self, replica: Replica, reason: str) -> None:
        """The store did something else than was asked: steps stay at the trainer from now on."""
        with self._lock:
            first, self.cutting = self.cutting is not None, None
        if first:
            text = f"store {replica.name}: {reason}; steps stay at the trainer from now on"
            warnings.warn(text, stacklevel=2)


def _mostly_files(request: ReadRequest) -> bool:
    cut = np.count_nonzero(np.frombuffer(request.cuts, np.uint8))
    return bool(cut <= _FEW * len(request.cuts))


def accept(reply: list[tuple[Any, Any]], ids: NDArray[np.int64], *, cut: bool, seal: int) -> Parcel:
    """The samples of a reply; raises `Damaged` if they are not what was asked for, as it was sent."""
    if len(reply) != 1:
        raise Damaged(f"{len(reply)} batches instead of one")
    return payloads.unpack(reply[0][0], ids, cut=cut, seal=seal)


def _accept_blocks(reply: list[tuple[Any, Any]], seal: int) -> NDArray[np.int64]:
    try:
        ((batch, digest),) = reply
        batch.validate(full=True)
        starts: NDArray[np.int64] = batch.column("start").to_numpy()
    except (ValueError, KeyError, pa.ArrowException) as error:
        raise Damaged(f"blocks that cannot be used: {error}") from error
    if digest is None or digest.to_pybytes() != pages.blocks_digest(starts, seal):
        raise Damaged("blocks with a wrong digest")
    return starts


def _answered(parcel: Parcel) -> int:
    """How many samples the store had room for in its reply; the others are to be asked for again.

    The first has room whatever its size, so if it has none that is an error like others.
    """
    for place in sorted(parcel.errors):
        if place and _is_full(parcel.errors[place]):
            return place
    return len(parcel.ids)


def _is_full(text: bytes) -> bool:
    try:
        complaint: Complaint = messages.decode(Complaint, text)
    except HeadwaterError:
        return False
    return complaint.retry and complaint.kind == "Busy"


def _collect(parcel: Parcel, opened: Opened | None, wanted: Wanted, store: str) -> Fetched:
    """What a store sent, as far as it was opened, and what it said of samples that it could not send."""
    failed = {place: error_of(text) for place, text in parcel.errors.items()}
    fields = _columns(parcel.fields or [], failed)
    values = list(parcel.payloads) if opened is None else opened.values
    for place, error in failed.items():
        error.add_note(f"said by store {store}")
        values[place] = None
    costs = None if wanted.ways is None else _costs(parcel)
    if opened is None:
        return Fetched(values, fields, failed, bytes_moved=parcel.bytes, costs=costs)
    if costs is not None:
        costs.trainer_seconds[:] = opened.seconds
    packed = _packed(parcel, opened) if wanted.packed else {}
    return Fetched(values, fields, failed, opened.done, parcel.bytes, costs, packed)


def _packed(parcel: Parcel, opened: Opened) -> dict[int, Packed]:
    return {place: Packed(parcel.payloads[place], packing) for place, packing in opened.packings.items()}


def error_of(text: bytes) -> Exception:
    """The error that a store met with one sample; its kind must be one that concerns samples or files."""
    try:
        complaint: Complaint = messages.decode(Complaint, text)
    except HeadwaterError as error:
        return SampleError(str(error))
    return error_named(complaint.kind, complaint.text) or SampleError(complaint.text)


def _with_notes(error: Exception) -> str:
    return f"{error} ({'; '.join(error.__notes__)})"


def _costs(parcel: Parcel) -> Costs:
    costs = Costs.nothing(len(parcel.ids))
    costs.bytes[:] = [0 if payload is None else len(payload) for payload in parcel.payloads]
    if len(parcel.facts):
        costs.store_seconds[:] = parcel.facts["seconds"]
        costs.sizes[:, 0], costs.sizes[:, 1] = parcel.facts["source_height"], parcel.facts["source_width"]
        costs.able[:] = (parcel.facts["done"] > 0) | (parcel.facts["seconds"] == 0)
    return costs


def _columns(encoded: Sequence[bytes], failed: dict[int, Exception]) -> dict[str, list[object]]:
    """The fields of all samples by name; a sample whose fields cannot be read has failed."""
    rows: list[dict[str, object]] = [{} for _ in encoded]
    for place, row in enumerate(encoded):
        if place not in failed:
            try:
                rows[place] = decode_fields(row)
            except SampleCorrupt as error:
                failed[place] = SampleError(str(error))
    names = {name for row in rows for name in row}
    return {name: [row.get(name) for row in rows] for name in sorted(names)}


def _replaced(found: Fetched, places: NDArray[np.intp], other: Fetched) -> Fetched:
    """With what came instead, all of it files, in these places."""
    if found.done is not None:
        found.done[places] = 0
    nothing, none = [None] * len(found.values), [None] * len(places)
    return Fetched(
        _put(found.values, places, other.values),
        {
            name: _put(found.fields.get(name, nothing), places, other.fields.get(name, none))
            for name in {*found.fields, *other.fields}
        },
        {place: error for place, error in found.failed.items() if place not in places}
        | {int(places[place]): error for place, error in other.failed.items()},
        found.done,
        found.bytes_moved + other.bytes_moved,
        found.costs,
        {place: packed for place, packed in found.packed.items() if place not in places},
    )


def _put(values: Sequence[Any], places: NDArray[np.intp], others: Sequence[Any]) -> list[Any]:
    made = list(values)
    for place, value in zip(places.tolist(), others, strict=True):
        made[place] = value
    return made


def join(parts: Sequence[Fetched]) -> Fetched:
    """Parts of an answer, one behind the other."""
    begins = np.cumsum([0, *(len(part.values) for part in parts)]).tolist()
    names = {name for part in parts for name in part.fields}
    done = [np.zeros(len(part.values), np.uint8) if part.done is None else part.done for part in parts]
    return Fetched(
        [value for part in parts for value in part.values],
        {
            name: [v for part in parts for v in part.fields.get(name, [None] * len(part.values))]
            for name in names
        },
        {
            begin + place: e
            for begin, part in zip(begins, parts, strict=False)
            for place, e in part.failed.items()
        },
        None if all(part.done is None for part in parts) else np.concatenate(done),
        sum(part.bytes_moved for part in parts),
        _join_costs(parts),
        {
            begin + place: packed
            for begin, part in zip(begins, parts, strict=False)
            for place, packed in part.packed.items()
        },
    )


def _join_costs(parts: Sequence[Fetched]) -> Costs | None:
    if any(part.costs is None for part in parts):
        return None
    joined, begin = Costs.nothing(sum(len(part.values) for part in parts)), 0
    for part in parts:
        assert part.costs is not None
        joined.put(slice(begin, begin + len(part.values)), part.costs)
        begin += len(part.values)
    return joined
