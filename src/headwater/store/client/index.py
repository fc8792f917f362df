"""The index of a remote dataset: fetched in pages, checked, and kept by its digest for the next time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from headwater.data.index import Index
from headwater.data.indexcache import cache_folder
from headwater.data.progress import bar
from headwater.errors import DatasetError, StoreLost
from headwater.store.client.errand import Errand, locate
from headwater.store.client.replicas import Replicas
from headwater.store.wire import messages, pages
from headwater.store.wire.messages import DatasetFacts, IndexRequest
from headwater.store.wire.payloads import Damaged

log = logging.getLogger("headwater")

T = TypeVar("T")


def kept_indexes() -> Iterator[Index]:
    """All that were fetched before, and can be read; those of what a store serves no more among them."""
    for path in sorted(cache_folder().glob("remote-*.arrow")):
        index = _load(path)
        if index is not None:
            yield index


def open_index(replicas: Replicas, dataset: str, facts: DatasetFacts, *, progress: bool | None) -> Index:
    """From the cache if it is there, else from the store. Raises `StoreLost` or `DatasetError`."""
    path = cache_folder() / f"remote-{facts.content}.arrow"
    cached = _load(path)
    if cached is not None and cached.version == facts.version:
        return cached
    index = _fetch(replicas, dataset, facts, progress)
    if index.version != facts.version or pages.content_of(index) != facts.content:
        raise DatasetError(f"the index of {dataset!r} is not what {replicas.names} said; open it again")
    _save(index, path)
    return index


def _fetch(replicas: Replicas, dataset: str, facts: DatasetFacts, progress: bool | None) -> Index:
    found: list[pa.RecordBatch] = []
    with bar("index", facts.samples, wanted=progress) as advance:
        start = 0
        while start < facts.samples:
            request = IndexRequest(dataset=dataset, version=facts.version, client="", start=start)
            try:
                batch = Errand(replicas, messages.encode(request), _acceptor(start)).run()
            except StoreLost as error:
                raise locate(error, dataset, start, "fetching the index") from error
            found.append(batch)
            start += len(batch)
            advance(len(batch))
    return pages.join_pages(found, pages.read_header(found[0]))


def _acceptor(start: int) -> Callable[[list[tuple[Any, Any]]], pa.RecordBatch]:
    def accept(reply: list[tuple[Any, Any]]) -> pa.RecordBatch:
        if len(reply) != 1 or reply[0][1] is None or not len(reply[0][0]):
            raise Damaged(f"{len(reply)} pages of the index instead of one")
        batch, digest = reply[0]
        pages.check_page(batch, digest.to_pybytes(), start)
        return batch

    return accept


def _load(path: Path) -> Index | None:
    if not path.exists():
        return None
    try:
        return Index.load(path)
    except DatasetError as error:
        log.warning("%s; fetching it again", error)
        return None


def _save(index: Index, path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        index.save(path)
    except OSError as error:
        log.warning(
            "the index cannot be kept in %s: %s; it will be fetched again", path.parent, error.strerror
        )
