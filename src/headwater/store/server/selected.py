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
from headwater.store.wire.pages import SELECTION_ROWS, selection_page

_ROW_BYTES = 12


class SelectionDesk:
    """Answers requests for selections. `find` has that of a job; it raises `WrongUse` where there is none."""

    def __init__(self, desk: Desk, find: Callable[[str], Kept]) -> None:
        self._desk, self._find = desk, find
        self._lock = threading.Lock()
        self._last: tuple[str, Kept] | None = None

    def read(
        self, request: SelectionRequest, caller: str, gone: Callable[[], bool], seal: int = 0
    ) -> Iterator[Any]:
        """One page and its digest; raises `WrongUse` for a job that selected nothing of this dataset."""
        self._desk.find(request.dataset, request.version)
        kept = self._open(request.job)
        if (kept.dataset, kept.version) != (request.dataset, request.version):
            raise WrongUse(f"job {request.job!r} is none of dataset {request.dataset!r}; start another")

        def page() -> tuple[pa.RecordBatch, bytes]:
            batch, digest = selection_page(kept.ids, kept.weights, request.start, request.rows, seal=seal)
            self._desk.ledger.add("headwater_bytes_sent_total", batch.nbytes, "selection")
            return batch, digest

        size = _ROW_BYTES * min(request.rows or SELECTION_ROWS, SELECTION_ROWS)
        yield from self._desk.send(page, (caller, request.client), size=size, gone=gone)

    def _open(self, job: str) -> Kept:
        """The one that was asked for last stays open: its digest need not be computed for every page."""
        with self._lock:
            if self._last is None or self._last[0] != job:
                self._last = job, self._find(job)
            return self._last[1]
