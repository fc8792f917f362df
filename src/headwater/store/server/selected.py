"""What a store answers to requests for what its jobs have selected: ids and weights, page by page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from headwater.errors import WrongUse
from headwater.store.jobs.selections import Kept
from headwater.store.server.desk import Desk
from headwater.store.wire.messages import SelectionRequest
from headwater.store.wire.selectionpages import Chosen, most_rows, selection_page

_ROW_BYTES = 12  # of an id and its number


class SelectionDesk:
    """Answers requests for selections. `find` has that of a job; it raises `WrongUse` where there is none."""

    def __init__(self, desk: Desk, find: Callable[[str], Kept]) -> None:
        self._desk, self._find = desk, find
        self._lock = threading.Lock()
        self._last: tuple[str, Kept] | None = None

    def find(self, request: SelectionRequest) -> Chosen:
        """What a request is about; raises `WrongUse` for a job that selected nothing of this dataset."""
        self._desk.find(request.dataset, request.version)
        kept = self._open(request.job)
        if (kept.dataset, kept.version) != (request.dataset, request.version):
            raise WrongUse(f"job {request.job!r} is none of dataset {request.dataset!r}; start another")
        return kept.chosen

    def read(
        self,
        chosen: Chosen,
        request: SelectionRequest,
        caller: str,
        gone: Callable[[], bool],
        seal: int = 0,
    ) -> Iterator[Any]:
        """One page and its digest."""

        def page() -> tuple[pa.RecordBatch, bytes]:
            batch, digest = selection_page(chosen, request.start, request.rows, seal=seal)
            self._desk.ledger.add("headwater_bytes_sent_total", batch.nbytes, "selection")
            return batch, digest

        width = chosen.rows.shape[1]
        size = (_ROW_BYTES + width) * min(request.rows or most_rows(width), most_rows(width))
        yield from self._desk.send(page, (caller, request.client), size=size, gone=gone)

    def _open(self, job: str) -> Kept:
        """The one that was asked for last stays open: its digest need not be computed for every page."""
        with self._lock:
            if self._last is None or self._last[0] != job:
                self._last = job, self._find(job)
            return self._last[1]
