"""What a version meets before it labels samples: which are left to do, and what models said of those before.

One look-up tells both. A PostgreSQL may be across a slow link, so that it is told each id once, and answers
with places in their order, and numbers behind them, in as many bytes as they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from headwater.store.labels.classes import ClassList
from headwater.store.labels.rows import NO_MODEL, LabelRows, Source
from headwater.store.labels.schema import IN_FORCE, OPINION, labels, row_of
from headwater.store.labels.staging import asked, fetch_binary, is_sqlite, stage_samples

_MODEL = Source.MODEL.value
_SAID = ("label", "score", "margin", "model", "time")
_ROW = np.dtype(
    [("place", "i8"), ("label", "i4"), ("score", "f4"), ("margin", "f4"), ("model", "i8"), ("time", "i8")]
)
"""What a model said before of the sample at a place."""
_PACKED = np.dtype([("place", ">i4"), ("label", ">i4"), ("score", ">f4"), ("margin", ">f4")])
_PLACE = np.dtype(">i4")

Places = NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class Recalled:
    """`pending` are ids, in order, of samples that have no row yet or a stale one.

    `said` are rows of models about those of them that a model has spoken of; which revisions wrote them is
    not told.
    """

    pending: NDArray[np.int64]
    said: LabelRows


def recall(
    connection: sa.Connection,
    dataset: int,
    model: int,
    samples: NDArray[np.int64],
    there: ClassList,
    *,
    of: Sequence[Source],
) -> Recalled:
    """For the version with this number. `of` are those whose labels it looks at again."""
    ordered = np.unique(samples)
    stage_samples(connection, ordered)
    look = _Look(dataset, model, tuple(source.value for source in of))
    settled, rows = look.fetch(connection) if is_sqlite(connection) else look.fetch_packed(connection)
    pending = np.ones(len(ordered), bool)
    pending[settled] = False
    rows = rows[np.argsort(rows["place"])]
    said = LabelRows.of(
        ordered[rows["place"]],
        there.roots[rows["label"]],
        source=Source.MODEL,
        scores=rows["score"],
        margins=rows["margin"],
        model=rows["model"],
        times=rows["time"],
    )
    return Recalled(ordered[pending], said)


@dataclass(frozen=True)
class _Look:
    """The statement, and what comes of it."""

    dataset: int
    model: int
    of: tuple[int, ...]

    def fetch(self, connection: sa.Connection) -> tuple[Places, NDArray[np.void]]:
        """Places of samples that need nothing, and what models said of the others."""
        now, opinion, joined = self._join(asked)
        # Samples without a row are passed over here: SQLite would walk through the whole dataset for it.
        columns = (now.c.sample, self._is_pending(now, opinion), *self._said(now, opinion))
        query = sa.select(*columns).select_from(joined).order_by(asked.c.sample)
        fetched = list(enumerate(connection.execute(query)))
        settled = [place for place, (sample, pending, *_) in fetched if sample is not None and not pending]
        spoken = [(place, *said) for place, (_, pending, *said) in fetched if pending and said[0] is not None]
        rows = np.empty(len(spoken), _ROW)
        for name, column in zip(("place", *_SAID), zip(*spoken, strict=True), strict=bool(spoken)):
            rows[name] = np.array(column, _ROW[name])  # None is NaN
        return np.array(settled, np.int64), rows

    def fetch_packed(self, connection: sa.Connection) -> tuple[Places, NDArray[np.void]]:
        """The same from PostgreSQL; rows of one model and moment come together: a job writes many at once."""
        settled: Places = np.empty(0, np.int64)
        parts = [np.empty(0, _ROW)]
        for model, time, packed in fetch_binary(connection, self._packed()):
            if model is None:
                settled = np.frombuffer(packed, _PLACE)
                continue
            found = np.frombuffer(packed, _PACKED)
            rows = np.empty(len(found), _ROW)
            rows["model"], rows["time"] = model, time
            for name in found.dtype.names or ():
                rows[name] = found[name]
            parts.append(rows)
        return settled, np.concatenate(parts)

    def _packed(self) -> sa.Select[Any]:
        rank = sa.func.row_number().over(order_by=asked.c.sample) - 1
        ranked = sa.select(asked.c.sample, sa.cast(rank, sa.Integer).label("place")).subquery("ranked")
        now, opinion, joined = self._join(ranked)
        pending = self._is_pending(now, opinion)
        label, score, margin, model, time = self._said(now, opinion)
        place = sa.func.int4send(ranked.c.place, type_=sa.LargeBinary)
        spoken = place.op("||")(sa.func.int4send(label))
        for number in (score, margin):
            spoken = spoken.op("||")(sa.func.float4send(sa.func.coalesce(number, sa.cast("NaN", sa.REAL))))
        rows = (
            sa.select(
                sa.case((pending, model)).label("model"),
                sa.case((pending, time)).label("time"),
                sa.case((pending, spoken), else_=place).label("packed"),
            )
            .select_from(joined)
            .where(now.c.sample.is_not(None), sa.or_(sa.not_(pending), model.is_not(None)))
            .subquery()
        )
        together = sa.func.string_agg(rows.c.packed, sa.literal(b"", sa.LargeBinary))
        return sa.select(rows.c.model, rows.c.time, together).group_by(rows.c.model, rows.c.time)

    def _join(self, base: sa.FromClause) -> tuple[sa.FromClause, sa.FromClause | None, sa.FromClause]:
        """The rows in force of the samples, and what models say against them if others' are looked at."""
        now = labels.alias("now")
        joined = base.outerjoin(now, row_of(self.dataset, IN_FORCE, base.c.sample, now))
        if not self._others:
            return now, None, joined
        opinion = labels.alias("opinion")
        return now, opinion, joined.outerjoin(opinion, row_of(self.dataset, OPINION, base.c.sample, opinion))

    def _is_pending(self, now: sa.FromClause, opinion: sa.FromClause | None) -> sa.ColumnElement[bool]:
        wanted: list[sa.ColumnElement[bool]] = [now.c.sample.is_(None)]
        if opinion is not None:
            unheard = sa.func.coalesce(opinion.c.model, NO_MODEL) < self.model
            wanted.append(sa.and_(now.c.source.in_(self._others), unheard))
        if _MODEL in self.of:
            wanted.append(sa.and_(now.c.source == _MODEL, now.c.model < self.model))
        return sa.or_(*wanted)

    def _said(self, now: sa.FromClause, opinion: sa.FromClause | None) -> list[sa.ColumnElement[Any]]:
        by_model = now.c.source == _MODEL
        other = {name: None if opinion is None else opinion.c[name] for name in _SAID}
        return [sa.case((by_model, now.c[name]), else_=other[name]) for name in _SAID]

    @property
    def _others(self) -> list[int]:
        return [source for source in self.of if source != _MODEL]
