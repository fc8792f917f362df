"""Labels as pages of rows: columns in a record batch, and beside them what their numbers mean.

One digest is of both and of the request's seal, so that the answer to another one is not accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.data.index import content_digest
from headwater.errors import WrongUse
from headwater.store.labels.page import Glossary, LabelPage
from headwater.store.labels.rows import LabelRows, Source
from headwater.store.labels.wanted import LabelQuery
from headwater.store.wire.messages import LabelRequest
from headwater.store.wire.payloads import Damaged

ROWS = 50_000
"""Rows of a page, if nobody asks for fewer."""
SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (
            ("sample", pa.int64()),
            ("label", pa.int32()),
            ("score", pa.float32()),
            ("margin", pa.float32()),
            ("source", pa.int8()),
            ("model", pa.int64()),
            ("time", pa.int64()),
            ("revision", pa.int64()),
        )
    ]
)
"""The columns of `LabelRows`; scores and margins are NaN where there is none."""
Counts = Mapping[str, Mapping[Source, int]]
"""Rows by class and source, as `LabelDatabase.counts` gives them."""
_DIGEST_BYTES = 16
_SOURCES = {source.name.lower(): source for source in Source}


class Beside(msgspec.Struct, frozen=True, omit_defaults=True):
    """What stands beside the rows. The last `opinions` of them are what models say against the others.

    `next` is where the following page begins; `glossary` the digest of `classes` and `versions`, which are
    nil where the client has them. `counts` are rows by class, a number for each source.
    """

    state: str
    glossary: str
    next: int | None = None
    opinions: int | None = None
    classes: tuple[str, ...] | None = None
    versions: dict[int, str] | None = None
    counts: dict[str, tuple[int, ...]] | None = None


def query_of(request: LabelRequest) -> LabelQuery:
    """What rows must be like; raises `WrongUse` for sources that are none."""
    for name in request.sources:
        if name not in _SOURCES:
            raise WrongUse(f"no source is called {name[:64]!r}; known: {', '.join(_SOURCES)}")
    return LabelQuery(
        classes=tuple(request.classes),
        scores=request.scores,
        margins=request.margins,
        sources=tuple(_SOURCES[name] for name in request.sources),
        model=request.model or None,
        older_than=request.older_than or None,
    )


def asking(query: LabelQuery) -> dict[str, Any]:
    """The fields of a request that `query_of` makes this query of."""
    return {
        "classes": list(query.classes),
        "scores": query.scores,
        "margins": query.margins,
        "sources": [source.name.lower() for source in query.sources],
        "model": query.model or "",
        "older_than": query.older_than or "",
    }


def pack(
    page: LabelPage, *, seal: int, known: str = "", counts: Counts | None = None
) -> tuple[pa.RecordBatch, bytes]:
    """The rows, and what stands beside them; `known` is the digest of the glossary that the client has."""
    glossary, opinions = page.glossary, page.opinions
    new = known != glossary.digest
    beside = Beside(
        state=page.state,
        glossary=glossary.digest,
        next=page.next,
        opinions=None if opinions is None else len(opinions),
        classes=glossary.names if new else None,
        versions=dict(glossary.versions) if new else None,
        counts=None if counts is None else {name: tuple(row.values()) for name, row in counts.items()},
    )
    batch, said = _batch(page.rows, opinions), msgspec.msgpack.encode(beside)
    return batch, _digest(batch, said, seal) + said


def unpack(
    batch: pa.RecordBatch, data: bytes, *, after: int, seal: int, known: Glossary
) -> tuple[LabelPage, Counts | None]:
    """The page of a reply, and counts if there are any.

    Raises `Damaged` if it is not what was sent, or no page that begins after this id.
    """
    said = data[_DIGEST_BYTES:]
    try:
        batch.validate(full=True)
        if batch.schema != SCHEMA or _digest(batch, said, seal) != data[:_DIGEST_BYTES]:
            raise Damaged(f"the page of labels after {after} has a wrong digest, or other columns")
        beside = msgspec.msgpack.decode(said, type=Beside)
    except (msgspec.MsgspecError, pa.ArrowException, ValueError) as error:
        raise Damaged(f"a page of labels cannot be used: {error}") from error
    page = _page(batch, beside, _glossary(beside, known))
    _check(page, after)
    return page, _counts(beside)


def _batch(rows: LabelRows, opinions: LabelRows | None) -> pa.RecordBatch:
    together = rows if opinions is None else rows.join(opinions)
    columns = zip(together.columns(), SCHEMA.types, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(column, kind) for column, kind in columns], schema=SCHEMA)


def _page(batch: pa.RecordBatch, beside: Beside, glossary: Glossary) -> LabelPage:
    count = len(batch) - (beside.opinions or 0)
    if not 0 <= count <= len(batch):
        raise Damaged(f"{beside.opinions} opinions in a page of {len(batch)} rows")
    rows = LabelRows(*(column.to_numpy() for column in batch.columns))
    opinions = None if beside.opinions is None else rows.take(slice(count, None))
    return LabelPage(rows.take(slice(count)), glossary, beside.next, opinions, beside.state)


def _glossary(beside: Beside, known: Glossary) -> Glossary:
    if beside.classes is None or beside.versions is None:
        found = known
    else:
        found = Glossary(beside.classes, beside.versions)
    if found.digest != beside.glossary:
        raise Damaged("a page of labels whose numbers mean something else than was said")
    return found


def _check(page: LabelPage, after: int) -> None:
    """Raises `Damaged` for numbers that mean nothing, and for ids that are not in order."""
    for rows in (page.rows, page.opinions):
        if rows is None:
            continue
        below = np.concatenate([[after], rows.samples])
        if (np.diff(below) <= 0).any():
            raise Damaged(f"the page of labels after {after} is not in order of id")
        if not (_within(rows.labels, len(page.glossary.names)) and _within(rows.sources, len(Source))):
            raise Damaged(f"the page of labels after {after} has classes or sources that there are not")
    last = int(page.rows.samples[-1]) if len(page.rows) else after + 1
    if page.next is not None and page.next < last:
        raise Damaged(f"the page of labels after {after} is followed by one after {page.next}")


def _within(column: NDArray[np.integer[Any]], most: int) -> bool:
    return not len(column) or (int(column.min()) >= 0 and int(column.max()) < most)


def _counts(beside: Beside) -> Counts | None:
    if beside.counts is None:
        return None
    if any(len(row) != len(Source) for row in beside.counts.values()):
        raise Damaged("counts of labels for other sources than there are")
    return {name: dict(zip(Source, row, strict=True)) for name, row in beside.counts.items()}


def _digest(batch: pa.RecordBatch, said: bytes, seal: int) -> bytes:
    return bytes.fromhex(content_digest(batch, {"seal": seal, "beside": said.hex()}))
