"""What a person should look at first, and what changed between two model versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from headwater.errors import LabelError
from headwater.store.labels.announced import Announced
from headwater.store.labels.classes import ClassList, rooted
from headwater.store.labels.queries import columns_of, parts, to_rows
from headwater.store.labels.rows import LabelRows, Source
from headwater.store.labels.schema import DOUBT, IN_FORCE, OPINION, history, labels, layer_is, revisions

_MODEL = Source.MODEL.value


@dataclass(frozen=True)
class Review:
    """Rows to look at, the first one first; `others` are what disagrees with each, sample by sample.

    `next` is where the following page begins, None after the last.
    """

    rows: LabelRows
    others: LabelRows | None
    next: tuple[float, int] | None


@dataclass(frozen=True)
class Asked:
    """Which page of which dataset's queue; `after` is an earlier page's `next`."""

    dataset: int
    classes: ClassList
    limit: int
    after: tuple[float, int] | None = None


@dataclass(frozen=True)
class VersionDiff:
    """Samples that both versions have labelled, counted by the class that each gave."""

    before: Announced
    after: Announced
    matrix: Mapping[tuple[str, str], int]

    @property
    def samples(self) -> int:
        return sum(self.matrix.values())

    @property
    def changed(self) -> int:
        return sum(count for (old, new), count in self.matrix.items() if old != new)


def by_margin(connection: sa.Connection, page: Asked) -> Review:
    """Rows in force that a model is least sure of: the smallest margin first.

    Those below `DOUBT` come from an index; the rest, once they are reached, from a pass over all rows.
    """
    doubt = sa.literal_column(DOUBT, sa.REAL)
    fetched = connection.execute(_margins(page, labels.c.margin < doubt, page.limit)).all()
    if len(fetched) < page.limit:
        rest = _margins(page, labels.c.margin >= doubt, page.limit - len(fetched))
        fetched = [*fetched, *connection.execute(rest)]
    rows = to_rows(fetched, page.classes)
    last = (float(rows.margins[-1]), int(rows.samples[-1])) if len(rows) == page.limit else None
    return Review(rows, None, last)


def _margins(page: Asked, part: sa.ColumnElement[bool], limit: int) -> sa.Select[Any]:
    margin, sample = labels.c.margin, labels.c.sample
    where = [labels.c.dataset == page.dataset, layer_is(IN_FORCE), part]
    where.append(labels.c.source == sa.literal_column(str(_MODEL)))
    if page.after is not None:
        begin = sa.tuple_(sa.literal(page.after[0], sa.REAL), sa.literal(page.after[1], sa.BigInteger))
        where.append(sa.tuple_(margin, sample) > begin)
    return sa.select(*columns_of(labels)).where(*where).order_by(margin, sample).limit(limit)


def by_disagreement(connection: sa.Connection, page: Asked) -> Review:
    """Labels of humans and imports that the last model contradicts: where it is surest first."""
    now, opinion = labels.alias("now"), labels.alias("opinion")
    same = sa.and_(now.c.dataset == page.dataset, layer_is(IN_FORCE, now), now.c.sample == opinion.c.sample)
    sure, sample = sa.func.coalesce(opinion.c.margin, 0.0), opinion.c.sample
    where = [opinion.c.dataset == page.dataset, layer_is(OPINION, opinion)]
    # An outer join and coalesce, so that SQLite walks through the opinions, which are few.
    where.append(sa.func.coalesce(now.c.source, _MODEL) != _MODEL)
    given = sa.func.coalesce(rooted(now.c.label, page.classes), -1)
    where.append(given != rooted(opinion.c.label, page.classes))
    if page.after is not None:
        begin = sa.literal(page.after[0], sa.REAL)
        where.append(sa.or_(sure < begin, sa.and_(sure == begin, sample > page.after[1])))
    query = sa.select(*columns_of(now), *columns_of(opinion)).select_from(opinion.outerjoin(now, same))
    query = query.where(*where).order_by(sure.desc(), sample).limit(page.limit)
    return _paired(connection, query, page, key=lambda others: float(np.nan_to_num(others.margins[-1])))


def by_models(connection: sa.Connection, page: Asked) -> Review:
    """Rows of the last model that the model before it contradicts, in order of id."""
    last, previous = _last_two(connection, page.dataset)
    now, other = labels.alias("now"), _answers(page.dataset, previous, "other")
    same = sa.and_(now.c.sample == other.c.sample, now.c.dataset == page.dataset, layer_is(IN_FORCE, now))
    where = [now.c.model == last]
    where.append(rooted(now.c.label, page.classes) != rooted(other.c.label, page.classes))
    if page.after is not None:
        where.append(now.c.sample > page.after[1])
    query = _both(now, other, same).where(*where).order_by(now.c.sample).limit(page.limit)
    return _paired(connection, query, page, key=lambda others: 0.0)


QUEUES: dict[str, Callable[[sa.Connection, Asked], Review]] = {
    "margin": by_margin,
    "disagreement": by_disagreement,
    "models": by_models,
}


def diff(
    connection: sa.Connection, dataset: int, there: ClassList, *, before: Announced, after: Announced
) -> VersionDiff:
    """How the answers of two versions differ, those that were replaced or undone since included."""
    old, new = _answers(dataset, before.number, "old"), _answers(dataset, after.number, "new")
    pair = (rooted(old.c.label, there).label("was"), rooted(new.c.label, there).label("became"))
    query = sa.select(*pair, sa.func.count()).select_from(old.join(new, old.c.sample == new.c.sample))
    found = connection.execute(query.group_by(*pair).order_by(*pair))
    names = there.names
    return VersionDiff(before, after, {(names[was], names[became]): count for was, became, count in found})


def diff_rows(
    connection: sa.Connection, dataset: int, there: ClassList, *, before: Announced, after: Announced
) -> Iterator[tuple[LabelRows, LabelRows]]:
    """The samples whose class differs, in order of id: the older version's rows and the newer's."""
    old, new = _answers(dataset, before.number, "old"), _answers(dataset, after.number, "new")
    query = _both(old, new, old.c.sample == new.c.sample).order_by(old.c.sample)
    differing = rooted(old.c.label, there) != rooted(new.c.label, there)
    for fetched in parts(connection, query.where(differing)):
        yield _split(fetched, there)


def _both(one: Any, other: Any, same: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(*columns_of(one), *columns_of(other)).select_from(one.join(other, same))


def _split(fetched: Any, there: ClassList) -> tuple[LabelRows, LabelRows]:
    width = len(columns_of(labels))
    return to_rows([row[:width] for row in fetched], there), to_rows([row[width:] for row in fetched], there)


def _paired(
    connection: sa.Connection, query: sa.Select[Any], page: Asked, *, key: Callable[[LabelRows], float]
) -> Review:
    rows, others = _split(connection.execute(query).all(), page.classes)
    last = (key(others), int(rows.samples[-1])) if len(rows) == page.limit else None
    return Review(rows, others, last)


def _answers(dataset: int, model: int, name: str) -> sa.Subquery:
    """What a version said of each sample: in force, an opinion, or replaced since; the latest of several."""
    columns = ["sample", "label", "score", "margin", "source", "model", "time", "revision"]
    everything = sa.union_all(
        *(
            sa.select(*(table.c[column] for column in columns)).where(
                table.c.dataset == dataset, table.c.model == model
            )
            for table in (labels, history)
        )
    ).subquery()
    latest = sa.func.row_number().over(
        partition_by=everything.c.sample, order_by=everything.c.revision.desc()
    )
    ranked = sa.select(everything, latest.label("place")).subquery()
    return sa.select(*(ranked.c[column] for column in columns)).where(ranked.c.place == 1).subquery(name)


def _last_two(connection: sa.Connection, dataset: int) -> tuple[int, int]:
    wrote = (revisions.c.dataset == dataset, revisions.c.model.is_not(None), revisions.c.undone_by.is_(None))
    query = sa.select(revisions.c.model).where(*wrote).distinct().order_by(revisions.c.model.desc()).limit(2)
    found = connection.execute(query).scalars().all()
    if len(found) < 2:
        raise LabelError(f"{len(found)} model versions have labelled this dataset; a comparison needs two")
    return found[0], found[1]
