"""Several stores with disjoint samples are one store: one index over all, requests that go out side by side.

What belongs here: how indexes become one, which store has which position, and how parts of an answer are
joined. Stores that hold the same samples are replicas of one remote store: the business of `client/`.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.data.forks import renew_in_children
from headwater.data.index import Index, Places
from headwater.engine.chain import Chain
from headwater.engine.crew import Daemons
from headwater.engine.fetching import Costs, Fetched, Reader, Wanted
from headwater.errors import DatasetError, StoreLost, WrongUse
from headwater.plan.offload import Offload
from headwater.store.base import Positions, Site, Store
from headwater.store.client.errand import Abandoned

log = logging.getLogger("headwater")

T = TypeVar("T")

_MOST_READERS = 32
_MOST_THREADS = 128  # of all stores together


@dataclass(frozen=True, eq=False)
class Part:
    """What one store has of a request: its number, the places in the request, the positions in its index."""

    store: int
    places: Positions
    positions: Positions


class ShardedStore:
    """The samples of several stores, in an order that does not depend on how the stores were named.

    Safe to use from many threads. Raises `DatasetError` where the stores share samples, or where only some
    name their classes.
    """

    def __init__(self, stores: Sequence[Store]) -> None:
        if not stores:
            raise WrongUse("a fleet of no stores; name at least one")
        self.stores = tuple(sorted(stores, key=lambda store: store.index.version))
        self.names = tuple(store.uri.replace("\n", ", ") for store in self.stores)
        self.index = _unite([store.index for store in self.stores], self.names)
        self._begins = np.cumsum([0, *(len(store.index) for store in self.stores)])[:-1]
        self._lanes = _Lanes([store.readers for store in self.stores])
        self._fields: tuple[int, frozenset[str]] | None = None
        weakref.finalize(self, self._lanes.close).atexit = False

    @property
    def uri(self) -> str:
        return "\n".join(store.uri for store in self.stores)

    @property
    def remote(self) -> bool:
        return any(store.remote for store in self.stores)

    @property
    def readers(self) -> int:
        return min(_MOST_READERS, sum(store.readers for store in self.stores))

    @property
    def cached_bytes(self) -> int | None:
        held = [store.cached_bytes for store in self.stores]
        return None if None in held else sum(some for some in held if some is not None)

    def sizes(self, positions: Positions) -> NDArray[np.int64]:
        sizes = np.zeros(len(positions), np.int64)
        for part in self.divide(positions):
            sizes[part.places] = self.stores[part.store].sizes(part.positions)
        return sizes

    def read(self, positions: Positions) -> Sequence[Any]:
        answers = self.spread(
            self.divide(positions), lambda part: self.stores[part.store].read(part.positions)
        )
        return _scatter(len(positions), answers)

    def read_heads(self, positions: Positions, length: int) -> Sequence[Any]:
        answers = self.spread(
            self.divide(positions), lambda part: self.stores[part.store].read_heads(part.positions, length)
        )
        return _scatter(len(positions), answers)

    def read_fields(self, positions: Positions) -> Mapping[str, Sequence[object]]:
        answers = self.spread(
            self.divide(positions), lambda part: self.stores[part.store].read_fields(part.positions)
        )
        for part, fields in answers:
            self.check_fields(part, fields)
        return _join_fields(len(positions), answers)

    def reader(self, chain: Chain, ways: Sequence[Offload]) -> Reader:
        return ShardedReader(self, [store.reader(chain, ways) for store in self.stores])

    def compare_steps(self) -> None:
        for store in self.stores:
            store.compare_steps()

    def sites(self, chain: Chain, ways: Sequence[Offload]) -> tuple[Site, ...]:
        found = [store.sites(chain, ways) for store in self.stores]
        # a fleet of local data only is local; else every store has one site, so that their numbers agree
        return tuple(site for sites in found for site in sites) if all(found) else ()

    def site_of(self, positions: Positions) -> NDArray[np.intp]:
        # from the right, so that a store without samples owns none
        owners: NDArray[np.intp] = np.searchsorted(self._begins, positions, side="right") - 1
        return owners

    def key(self, position: int) -> str:
        return self.index.key(position)

    def blocks(self) -> Positions | None:
        return self._blocks

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._lanes.close)
            for store in self.stores:
                stack.callback(store.close)

    def divide(self, positions: Positions) -> list[Part]:
        """Which store has which of these positions; raises `IndexError` for one outside the dataset."""
        positions = np.asarray(positions, np.int64)
        outside = (positions < 0) | (positions >= len(self.index))
        if outside.any():
            raise IndexError(f"position {positions[outside][0]} is outside an index of {len(self.index)}")
        owners = self.site_of(positions)
        parts = []
        for number in np.unique(owners).tolist():
            (places,) = np.nonzero(owners == number)
            parts.append(Part(number, places, positions[places] - self._begins[number]))
        return parts

    def spread(
        self, parts: Sequence[Part], call: Callable[[Part], T], request: _Request[T] | None = None
    ) -> list[tuple[Part, T]]:
        """Each part with its answer, all asked for at once; the first error ends the waiting for the rest."""
        if len(parts) == 1:
            return [(parts[0], self._ask(parts[0], call))]
        request = request or _Request()
        for number, part in enumerate(parts):
            self._lanes.submit(part.store, request.answer, number, lambda part=part: self._ask(part, call))
        return list(zip(parts, request.wait(len(parts)), strict=True))

    def check_fields(self, part: Part, fields: Iterable[str]) -> None:
        """Raise if another store hands over other fields, which would give batches of differing shapes."""
        names = frozenset(fields)
        first, known = self._fields or (part.store, names)
        self._fields = first, known
        if names != known:
            raise DatasetError(
                f"store {self.names[first]} hands over {_listed(known)}, store {self.names[part.store]} "
                f"{_listed(names)}; serve all with the same fields"
            )

    def _ask(self, part: Part, call: Callable[[Part], T]) -> T:
        try:
            return call(part)
        except StoreLost as error:
            if error.position < 0:
                raise
            position = int(self._begins[part.store]) + error.position
            raise StoreLost(
                f"{error}; position {error.position} of this store is {position} of the dataset",
                store=error.store,
                dataset=error.dataset,
                position=position,
            ) from error

    @cached_property
    def _blocks(self) -> Positions | None:
        nothing = np.empty(0, np.int64)
        parts = [Part(number, nothing, nothing) for number in range(len(self.stores))]
        answers = self.spread(parts, lambda part: self.stores[part.store].blocks())
        starts = [found + self._begins[part.store] for part, found in answers if found is not None]
        return np.concatenate(starts) if len(starts) == len(parts) else None


class ShardedReader:
    """Reads for one run, with a reader of its own at each store."""

    def __init__(self, store: ShardedStore, readers: Sequence[Reader], *, fields: bool = True) -> None:
        """`fields`: whether the readers hand over further fields, which must be those of all stores."""
        self._store, self._readers, self._fields = store, readers, fields
        self._lock = threading.Lock()
        self._requests: set[_Request[Fetched]] = set()
        self._over = False

    def sizes(self, positions: Positions) -> NDArray[np.int64]:
        return self._store.sizes(positions)

    def key(self, position: int) -> str:
        return self._store.key(position)

    def fetch(self, wanted: Wanted) -> Fetched:
        request: _Request[Fetched] = _Request()
        with self._lock:
            if self._over:
                raise Abandoned("the run is over")
            self._requests.add(request)
        try:
            answers = self._store.spread(
                self._store.divide(wanted.positions), lambda part: self._fetch(part, wanted), request
            )
        finally:
            with self._lock:
                self._requests.discard(request)
        return answers[0][1] if len(answers) == 1 else _join(len(wanted.ids), answers)

    def abandon(self) -> None:
        with self._lock:
            self._over = True
            requests = list(self._requests)
        for reader in self._readers:
            reader.abandon()
        for request in requests:
            request.abandon()

    def _fetch(self, part: Part, wanted: Wanted) -> Fetched:
        own = replace(wanted.take(part.places), positions=part.positions)
        found = self._readers[part.store].fetch(own)
        # samples that failed tell nothing of their fields
        if self._fields and len(found.failed) < len(found.values):
            self._store.check_fields(part, found.fields)
        return found


class _Request(Generic[T]):
    """Waits for several answers; an error, or the wish to stop, ends it before all are there."""

    def __init__(self) -> None:
        self._answers: SimpleQueue[tuple[int, T] | BaseException] = SimpleQueue()
        self._over = False

    def answer(self, number: int, call: Callable[[], T]) -> None:
        """Make one of the answers, unless nobody waits for it any more."""
        if self._over:
            return
        try:
            self._answers.put((number, call()))
        except BaseException as error:
            self._answers.put(error)

    def abandon(self) -> None:
        self._answers.put(Abandoned("the run is over"))

    def wait(self, count: int) -> list[T]:
        """The answers in order of their numbers."""
        found: dict[int, T] = {}
        try:
            while len(found) < count:
                answer = self._answers.get()
                if isinstance(answer, BaseException):
                    raise answer
                found[answer[0]] = answer[1]
        finally:
            self._over = True
        return [found[number] for number in range(count)]


class _Lanes:
    """Threads for each store, so that a slow one takes none from the others."""

    def __init__(self, readers: Sequence[int]) -> None:
        share = max(1, _MOST_THREADS // len(readers))
        self._most = [min(most, share) for most in readers]
        self._closed = False
        self.begin()
        renew_in_children(self)

    def begin(self) -> None:
        self._pools = [Daemons(most, f"headwater-shard-{n}") for n, most in enumerate(self._most)]

    def submit(self, store: int, call: Callable[..., None], /, *arguments: Any) -> None:
        if self._closed:
            raise WrongUse("this dataset was closed; open it again")
        self._pools[store].submit(call, *arguments)

    def close(self) -> None:
        """Let the threads go. Calls that wait are still made: somebody waits for their answers."""
        self._closed = True
        for pool in self._pools:
            pool.shutdown(wait=False)


def _scatter(count: int, answers: Iterable[tuple[Part, Sequence[T]]]) -> list[Any]:
    """Values in the order of the request; None where no store gave one."""
    values: list[Any] = [None] * count
    for part, found in answers:
        for place, value in zip(part.places.tolist(), found, strict=True):
            values[place] = value
    return values


def _join_fields(
    count: int, answers: Sequence[tuple[Part, Mapping[str, Sequence[object]]]]
) -> dict[str, list[object]]:
    names = sorted({name for _, fields in answers for name in fields})
    return {
        name: _scatter(count, [(part, fields[name]) for part, fields in answers if name in fields])
        for name in names
    }


def _join(count: int, answers: Sequence[tuple[Part, Fetched]]) -> Fetched:
    done = np.zeros(count, np.uint8)
    for part, found in answers:
        done[part.places] = 0 if found.done is None else found.done
    return Fetched(
        _scatter(count, [(part, found.values) for part, found in answers]),
        _join_fields(count, [(part, found.fields) for part, found in answers]),
        {int(part.places[place]): e for part, found in answers for place, e in found.failed.items()},
        None if all(found.done is None for _, found in answers) else done,
        sum(found.bytes_moved for _, found in answers),
        _join_costs(count, answers),
        {int(part.places[place]): packed for part, f in answers for place, packed in f.packed.items()},
    )


def _join_costs(count: int, answers: Sequence[tuple[Part, Fetched]]) -> Costs | None:
    joined = Costs.nothing(count)
    for part, found in answers:
        if found.costs is None:
            return None
        joined.put(part.places, found.costs)
    return joined


def _listed(names: Iterable[str]) -> str:
    return f"fields {', '.join(sorted(names))}" if names else "no fields"


def _unite(indexes: Sequence[Index], names: Sequence[str]) -> Index:
    """The rows of all indexes, in this order; `names` tell them apart in errors.

    Columns that some lack, or have with another type, are left out. Raises `DatasetError` where two
    share ids, or where only some name their classes.
    """
    # An index without rows has neither classes nor columns, and must not take them from the others.
    held = [place for place in range(len(indexes)) if len(indexes[place])] or [0]
    indexes, names = [indexes[place] for place in held], [names[place] for place in held]
    classes = _union_of_classes(indexes, names)
    labels = [_renumber(index, classes, name) for index, name in zip(indexes, names, strict=True)]
    order = _merge_orders(indexes, names)
    return Index(
        ids=np.concatenate([index.ids for index in indexes]),
        labels=np.concatenate(labels),
        sizes=np.concatenate([index.sizes for index in indexes]),
        keys=pa.concat_arrays([index.keys for index in indexes]),
        places=Places(("",), np.zeros(len(order), np.int32), np.zeros(len(order), np.int64)),
        order=order,
        classes=classes,
        columns=_shared_columns(indexes),
        exact_sizes=all(index.exact_sizes for index in indexes),
    )


def _merge_orders(indexes: Sequence[Index], names: Sequence[str]) -> NDArray[np.int64]:
    """Positions over all rows by id, from each index's own: to sort all ids anew costs five times as much."""
    begins = np.cumsum([0, *(len(index) for index in indexes)])[:-1]
    ranked = np.concatenate([index.ids[index.order] for index in indexes])
    merged = np.argsort(ranked, kind="stable")  # which merges what is sorted already
    ranked = ranked[merged]
    (twins,) = np.nonzero(ranked[1:] == ranked[:-1])
    if len(twins):
        _refuse_overlap(indexes, names)
        raise DatasetError(f"an index holds id {ranked[twins[0]]} twice; index its dataset anew")
    orders = [index.order + begin for index, begin in zip(indexes, begins, strict=True)]
    order: NDArray[np.int64] = np.concatenate(orders)[merged]
    return order


def _union_of_classes(indexes: Sequence[Index], names: Sequence[str]) -> tuple[str, ...]:
    if len({index.classes for index in indexes}) == 1:
        return indexes[0].classes
    named = [bool(index.classes) for index in indexes]
    if not all(named):
        with_names, without = names[named.index(True)], names[named.index(False)]
        raise DatasetError(
            f"store {with_names} names its classes and store {without} has bare numbers or no labels; "
            "label both the same way"
        )
    return tuple(sorted({name for index in indexes for name in index.classes}))


def _renumber(index: Index, classes: tuple[str, ...], name: str) -> NDArray[np.int64]:
    if index.classes == classes:
        return index.labels
    wrong = (index.labels < -1) | (index.labels >= len(index.classes))
    if wrong.any():
        raise DatasetError(
            f"store {name} has label {index.labels[wrong][0]} and {len(index.classes)} classes, so it cannot "
            "join stores with other classes; mend its labels"
        )
    place = {name: number for number, name in enumerate(classes)}
    # A missing label is -1, which picks the appended -1.
    table = np.array([*(place[name] for name in index.classes), -1], np.int64)
    return table[index.labels]


def _shared_columns(indexes: Sequence[Index]) -> dict[str, pa.Array]:
    first, *others = indexes
    found: dict[str, pa.Array] = {}
    for name, column in first.columns.items():
        if not all(name in other.columns and other.columns[name].type == column.type for other in others):
            continue
        try:
            found[name] = pa.concat_arrays([index.columns[name] for index in indexes])
        except pa.ArrowException as error:  # texts past 2 GiB, or more of them than their numbers can tell
            log.warning("column %r cannot be joined over all stores and is left out: %s", name, error)
    return found


def _refuse_overlap(indexes: Sequence[Index], names: Sequence[str]) -> None:
    """Raise for two indexes that share ids, naming both."""
    ids = np.concatenate([index.ids for index in indexes])
    order = np.argsort(ids, kind="stable")
    (twins,) = np.nonzero(ids[order[1:]] == ids[order[:-1]])
    ends = np.cumsum([len(index) for index in indexes])
    one = np.searchsorted(ends, order[twins], side="right")
    two = np.searchsorted(ends, order[twins + 1], side="right")
    between = np.flatnonzero(one != two)
    if not len(between):
        return
    first, second = int(one[between[0]]), int(two[between[0]])
    shared = np.intersect1d(indexes[first].ids, indexes[second].ids, assume_unique=True)
    key = indexes[first].key(int(indexes[first].position_of(shared[:1])[0]))
    raise DatasetError(
        f"stores {names[first]} and {names[second]} share {len(shared)} of their {len(indexes[first])} and "
        f"{len(indexes[second])} samples, such as {key!r}; serve disjoint samples with unique keys (shards), "
        "or the same dataset at both (replicas)"
    )
