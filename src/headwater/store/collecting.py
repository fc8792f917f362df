"""Labels that stores keep of a dataset, whichever and however many they are.

Shards have labels of their own samples. Replicas may have a database each, with labels of the same samples:
then the strongest counts, as in one database, and of equally strong ones the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headwater.engine.together import all_at_once
from headwater.errors import LabelError, Unreachable, WrongUse
from headwater.store.base import Store
from headwater.store.client.labels import LabelReader
from headwater.store.client.remote import RemoteStore
from headwater.store.fleet import ShardedStore
from headwater.store.labels.rows import LabelRows, Source
from headwater.store.labels.wanted import ALL, LabelQuery

T = TypeVar("T")
Ids = NDArray[np.int64]
Numbers = NDArray[np.int32]
Wanted = Mapping[Source, float | None]
"""Whose labels are wanted, and from which score on, if it matters."""

_STRENGTH = np.array([2, 0, 1])  # by number of the source
_MOST_STARTS = 3
_THREADS = "headwater-labels"


@dataclass(frozen=True, eq=False)
class Collected:
    """Samples, each once; `labels` are places in `names`."""

    ids: Ids
    labels: Numbers
    names: tuple[str, ...]


def queries_for(wanted: Wanted) -> Iterator[LabelQuery]:
    """One for each source."""
    for source, score in wanted.items():
        yield LabelQuery(sources=(source,), scores=None if score is None else (score, 1.0))


def in_order(ids: Ids, labels: Numbers) -> tuple[Ids, Numbers]:
    """Each sample once, in order of id. A label that was changed between two queries is found by both."""
    order = np.argsort(ids, kind="stable")
    order = order[_lasts(ids[order])]
    return ids[order], labels[order]


def _lasts(ids: Ids) -> NDArray[np.bool_]:
    """The last one of each id, of ids in order."""
    lasts: NDArray[np.bool_] = np.diff(ids, append=-1) != 0
    return lasts


def collect_labels(store: Store, wanted: Wanted) -> Collected:
    """What the stores of a dataset keep of its samples, all stores asked at once.

    Raises `LabelError` where none of them keeps labels of it, `WrongUse` for data that no store serves, and
    what keeps a store from answering: nobody else may know its labels.
    """
    parts = all_at_once([partial(_of_one, one, wanted) for one in _remotes(store)], name=_THREADS)
    found = [part for part in parts if part is not None]
    if not found:
        places = ", ".join(store.uri.splitlines())
        raise LabelError(f"no labels are kept of {places}; relabel it, or import some, first")
    names = _union([part.names for part in found])
    ids = np.concatenate([part.ids for part in found])
    labels = np.concatenate([_renumber(part.labels, part.names, names) for part in found])
    return Collected(*in_order(ids, labels), names)


def _remotes(store: Store) -> list[RemoteStore]:
    if isinstance(store, ShardedStore):
        return [one for part in store.stores for one in _remotes(part)]
    if isinstance(store, RemoteStore):
        return [store]
    raise WrongUse(f"{store.uri} is at no store that would keep labels of it; name their database")


def _of_one(store: RemoteStore, wanted: Wanted) -> Collected | None:
    """What a store keeps, or replicas together; None where none of them keeps any."""
    name, version = store.known.name, store.index.version
    connections = [replica.connection for replica in store.replicas.all]
    readers = [LabelReader(connection, name, version, client=store.client) for connection in connections]
    different = _different(readers)
    if not different:
        return None
    if len(different) > 1:
        return _merge(different, wanted)
    parts, names = _read(different[0], [*queries_for(wanted)], lambda rows: (rows.samples, rows.labels))
    ids, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Collected(ids, labels, names)


def _different(readers: Sequence[LabelReader]) -> list[LabelReader]:
    """One of those that look into the same database, and none of those that have no labels."""
    try:
        looks = all_at_once([partial(reader.page, limit=1) for reader in readers], name=_THREADS)
    except Unreachable as error:
        if len(readers) > 1:
            error.add_note("each replica may keep labels of its own; leave it out to do without those")
        raise
    found: dict[str, LabelReader] = {}
    for reader, page in zip(readers, looks, strict=True):
        if page.glossary.names:
            found.setdefault(page.state, reader)
    return list(found.values())


def _read(
    reader: LabelReader, queries: Sequence[LabelQuery], keep: Callable[[LabelRows], T]
) -> tuple[list[T], tuple[str, ...]]:
    """What is kept of each page, and the class names; begun anew where those change meanwhile."""
    for _ in range(_MOST_STARTS):
        pages = (page for query in queries for page in reader.pages(query))
        found = [(page.glossary.names, keep(page.rows)) for page in pages]
        names = {of for of, _ in found}
        if len(names) == 1:
            return [kept for _, kept in found], names.pop()
    raise LabelError(f"the classes at {reader.name} change while labels are read; ask again")


def _merge(readers: Sequence[LabelReader], wanted: Wanted) -> Collected:
    """All rows of databases that know the same samples; which of them counts is known when all are here."""
    calls = [partial(_read, reader, [ALL], lambda rows: rows) for reader in readers]
    kept = all_at_once(calls, name=_THREADS)
    names = _union([theirs for _, theirs in kept])
    parts = [
        replace(rows, labels=_renumber(rows.labels, theirs, names)) for some, theirs in kept for rows in some
    ]
    rows = parts[0].join(*parts[1:])
    # The label itself comes last: what counts does not depend on the order in which stores were named.
    rows = rows.take(np.lexsort((rows.labels, rows.times, _STRENGTH[rows.sources], rows.samples)))
    rows = rows.take(_lasts(rows.samples) & _chosen(rows, wanted))
    return Collected(rows.samples, rows.labels, names)


def _chosen(rows: LabelRows, wanted: Wanted) -> NDArray[np.bool_]:
    chosen = np.zeros(len(rows), bool)
    for source, score in wanted.items():
        enough = True if score is None else rows.scores >= np.float32(score)
        chosen |= (rows.sources == source) & enough
    return chosen


def _union(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """One class list for all: theirs, if they have the same, else all names in order of the alphabet."""
    if len(set(lists)) == 1:
        return lists[0]
    return tuple(sorted({name for names in lists for name in names}))


def _renumber(labels: Numbers, theirs: tuple[str, ...], names: tuple[str, ...]) -> Numbers:
    if theirs == names:
        return labels
    place = {name: number for number, name in enumerate(names)}
    table = np.array([place[name] for name in theirs], np.int32)
    renumbered: Numbers = table[labels]
    return renumbered
