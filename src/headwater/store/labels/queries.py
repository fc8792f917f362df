"""Which rows to read, and how: by pages that begin after a sample, or as one stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from headwater.store.labels import announced
from headwater.store.labels.classes import ClassList
from headwater.store.labels.rows import NO_MODEL, LabelRows, Source
from headwater.store.labels.schema import IN_FORCE, OPINION, labels, layer_is, row_of
from headwater.store.labels.staging import asked, stage_samples
from headwater.store.labels.wanted import LabelQuery

FETCHED_AT_ONCE = 10_000
LOOKED_AT = 500_000
"""Rows that are gone through for one page, however few of them it may hold: it is answered soon."""


def columns_of(table: sa.FromClause) -> list[sa.ColumnElement[Any]]:
    """What is read of a row, in the order of `LabelRows`."""
    model = sa.func.coalesce(table.c.model, NO_MODEL)
    first = (table.c[name] for name in ("sample", "label", "score", "margin", "source"))
    return [*first, model, table.c.time, table.c.revision]


def to_rows(fetched: Sequence[Sequence[Any]], there: ClassList) -> LabelRows:
    """Rows whose labels are what their classes were merged into."""
    rows = LabelRows.fetched(fetched)
    return LabelRows(rows.samples, there.roots[rows.labels], *rows.columns()[2:])


def page(
    connection: sa.Connection,
    dataset: int,
    query: LabelQuery,
    there: ClassList,
    *,
    after: int,
    limit: int,
    last: int | None = None,
) -> LabelRows:
    """The first rows with ids above `after`, and not above `last`, in order of id."""
    conditions = [labels.c.sample > after, *_conditions(connection, query)]
    if last is not None:
        conditions.append(labels.c.sample <= last)
    rows = [_select(dataset, conditions, label).limit(limit) for label in _members(query, there)]
    return to_rows(connection.execute(_together(rows).limit(limit)).all(), there)


def end_of(connection: sa.Connection, dataset: int, *, after: int, rows: int) -> int | None:
    """The id of the row in force that is so many behind `after`; None where there are fewer."""
    where = (labels.c.dataset == dataset, layer_is(IN_FORCE), labels.c.sample > after)
    query = sa.select(labels.c.sample).where(*where).order_by(labels.c.sample)
    return connection.execute(query.offset(rows - 1).limit(1)).scalar()


def stream(
    connection: sa.Connection, dataset: int, query: LabelQuery, there: ClassList
) -> Iterator[LabelRows]:
    """All rows in order of id, as one statement, so as they were at one moment."""
    rows = [_select(dataset, _conditions(connection, query), label) for label in _members(query, there)]
    for fetched in parts(connection, _together(rows)):
        yield to_rows(fetched, there)


def parts(connection: sa.Connection, query: sa.Select[Any]) -> Iterator[Sequence[Sequence[Any]]]:
    """The rows of a statement as they arrive, never all at once."""
    with connection.execute(query, execution_options={"yield_per": FETCHED_AT_ONCE}) as result:
        yield from result.partitions()


def look_up(
    connection: sa.Connection, dataset: int, samples: NDArray[np.int64], there: ClassList, *, layer: int
) -> LabelRows:
    """The rows of those samples that have one, in order of id."""
    stage_samples(connection, samples)
    joined = asked.outerjoin(labels, row_of(dataset, layer, asked.c.sample))
    query = sa.select(*columns_of(labels)).select_from(joined).order_by(asked.c.sample)
    return to_rows([row for row in connection.execute(query) if row[0] is not None], there)


def counts(connection: sa.Connection, dataset: int, there: ClassList) -> NDArray[np.int64]:
    """Rows in force by class and source, a row per class number and a column per source."""
    sums = [sa.func.sum(sa.case((labels.c.source == source.value, 1), else_=0)) for source in Source]
    where = (labels.c.dataset == dataset, layer_is(IN_FORCE))
    query = sa.select(labels.c.label, *sums).where(*where).group_by(labels.c.label)
    found = np.zeros((len(there), len(Source)), np.int64)
    for label, *numbers in connection.execute(query):
        found[there.roots[label]] += np.array(numbers, np.int64)
    return found


def stale(
    connection: sa.Connection, dataset: int, model: int, *, of: Sequence[Source], after: int, limit: int
) -> NDArray[np.int64]:
    """Ids above `after`, in order, whose model row is older than the version with this number.

    Of samples with another's label in force, if `of` names that source: where the model's opinion is older,
    or there is none.
    """
    others = [source.value for source in of if source is not Source.MODEL]
    query = sa.select(labels.c.sample).where(labels.c.dataset == dataset, layer_is(IN_FORCE))
    old = sa.and_(labels.c.source == Source.MODEL.value, labels.c.model < model)
    if others:
        opinion = labels.alias("opinion")
        query = query.select_from(
            labels.outerjoin(opinion, row_of(dataset, OPINION, labels.c.sample, opinion))
        )
        unheard = sa.func.coalesce(opinion.c.model, NO_MODEL) < model
        given = sa.and_(labels.c.source.in_(others), unheard)
        old = sa.or_(old, given) if Source.MODEL in of else given
    query = query.where(labels.c.sample > after, old).order_by(labels.c.sample).limit(limit)
    return np.array(connection.execute(query).scalars().all(), np.int64)


def _members(query: LabelQuery, there: ClassList) -> list[int | None]:
    """The class numbers to look for one by one, each in order of id; None for all at once."""
    found = {number for name in query.classes for number in there.members(name)}
    return [*sorted(found)] if found else [None]


def _select(dataset: int, conditions: Sequence[sa.ColumnElement[bool]], label: int | None) -> sa.Select[Any]:
    where = [labels.c.dataset == dataset, layer_is(IN_FORCE), *conditions]
    if label is not None:
        where.append(labels.c.label == label)
    return sa.select(*columns_of(labels)).where(*where).order_by(labels.c.sample)


def _together(selects: Sequence[sa.Select[Any]]) -> sa.Select[Any]:
    """One statement; with several classes each is looked up by its index, and the few are sorted."""
    if len(selects) == 1:
        return selects[0]
    wrapped = [sa.select(one.subquery()) for one in selects]
    everything = sa.union_all(*wrapped).subquery()
    return sa.select(everything).order_by(everything.c.sample)


def _conditions(connection: sa.Connection, query: LabelQuery) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    for column, bounds in ((labels.c.score, query.scores), (labels.c.margin, query.margins)):
        if bounds is not None:
            # The column holds 32-bit numbers: 0.9 there is not 0.9 here.
            low, high = (float(np.float32(bound)) for bound in bounds)
            found += [column >= low, column <= high]
    if query.sources:
        found.append(labels.c.source.in_([source.value for source in query.sources]))
    if query.model is not None:
        found.append(labels.c.model == announced.find(connection, query.model).number)
    if query.older_than is not None:
        found.append(labels.c.model < announced.find(connection, query.older_than).number)
    return found
