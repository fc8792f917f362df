"""What a store answers to requests for labels: pages of those that it keeps of the samples that it serves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headwater.data.index import Index
from headwater.engine.budget import Turnstile
from headwater.errors import LabelError, LabelRefused
from headwater.store.labels.page import Glossary, LabelPage
from headwater.store.labels.rows import LabelRows
from headwater.store.server.desk import Desk
from headwater.store.server.state import State
from headwater.store.wire import labelpages
from headwater.store.wire.labelpages import ROWS, Counts
from headwater.store.wire.messages import LabelRequest

if TYPE_CHECKING:
    from headwater.store.labels.database import LabelDatabase

log = logging.getLogger("headwater")

AT_ONCE = 4
"""Requests that wait for the label database, which may be on another machine; others read on meanwhile."""
_ROW_BYTES = 512  # as the database's driver holds it
_PATIENCE = 60.0  # seconds; the caller's own deadline is usually shorter


class LabelDesk:
    """Answers requests for labels. Without a state there are none."""

    def __init__(self, state: State | None, desk: Desk) -> None:
        self._state, self._desk = state, desk
        self._room = Turnstile(AT_ONCE, AT_ONCE * ROWS * _ROW_BYTES)

    def read(
        self, request: LabelRequest, caller: str, gone: Callable[[], bool], seal: int = 0
    ) -> Iterator[Any]:
        """One batch of the schema of `labelpages`, with what stands beside it.

        Raises `LabelError` at a store that keeps no labels, or cannot read them, `LabelRefused` for a
        version that the database does not know, `WrongUse` for a class or source that there is not.
        """
        index = self._desk.find(request.dataset, request.version).index
        rows, who = min(request.rows or ROWS, ROWS), (caller, request.client)
        with self._room.enter(*who, memory=rows * _ROW_BYTES, patience=_PATIENCE, gone=gone):
            page, counts = self._look(request, index, rows)
            packed = labelpages.pack(page, seal=seal, known=request.known, counts=counts)
        batch = packed[0]
        self._desk.ledger.add("headwater_bytes_sent_total", batch.nbytes, "labels")
        yield from self._desk.send(lambda: packed, who, size=batch.nbytes, gone=gone)

    def _look(self, request: LabelRequest, index: Index, rows: int) -> tuple[LabelPage, Counts | None]:
        if self._state is None:
            raise LabelError("this store keeps no labels; start it with --state FOLDER")
        query = labelpages.query_of(request)
        try:
            database = self._state.kept_labels
            if database is None or request.dataset not in database.datasets():
                return _NOTHING, {} if request.counts else None
            if request.counts:
                return _glance(database, request.dataset), database.counts(request.dataset)
            found = database.page(
                request.dataset, query, after=request.after, limit=rows, opinions=request.opinions
            )
        except LabelRefused as error:
            raise self._state.hide(error) from error
        except LabelError as error:
            # Where the database is, and what else is in it, is nobody's business beyond this machine.
            log.warning("labels of %s cannot be read: %s", request.dataset, error)
            raise LabelError("the store's label database cannot be read; the store's log says why") from error
        return _own(found, index), None


_NOTHING = LabelPage(LabelRows.fetched([]), Glossary(), None)


def _glance(database: LabelDatabase, dataset: str) -> LabelPage:
    """What numbers mean, and no rows."""
    return replace(_NOTHING, glossary=database.glossary(dataset))


def _own(page: LabelPage, index: Index) -> LabelPage:
    """Without rows of samples that the store does not serve: others may write to the same database."""
    opinions = page.opinions
    return replace(
        page,
        rows=page.rows.take(index.has(page.rows.samples)),
        opinions=None if opinions is None else opinions.take(index.has(opinions.samples)),
    )
