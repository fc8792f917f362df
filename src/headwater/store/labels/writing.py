"""One write: which rows it may replace, what goes to the history, and what models say where they may not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from headwater.errors import WrongUse
from headwater.store.labels import announced
from headwater.store.labels.revisions import Written
from headwater.store.labels.rows import NO_MODEL, LabelRows, Source
from headwater.store.labels.schema import CONTENT, IN_FORCE, OPINION, history, labels
from headwater.store.labels.staging import GIVEN, clear, count_of, incoming, insert, opinions, stage_rows

ROWS_AT_ONCE = 50_000
_HUMAN, _MODEL, _IMPORT = Source.HUMAN.value, Source.MODEL.value, Source.IMPORT.value
_PLACE = ["dataset", "layer", "sample"]


@dataclass(frozen=True)
class Change:
    """The write that is under way: its revision, its moment, and whether models may replace imports."""

    dataset: int
    revision: int
    now: int
    over_imports: bool = False


def check(connection: sa.Connection, rows: LabelRows, *, classes: int) -> None:
    """Raises `WrongUse` for rows that make no sense here, `LabelRefused` for unknown versions."""
    if len(rows) and int(rows.labels.max()) >= classes:
        raise WrongUse(f"label {rows.labels.max()} is no place in a list of {classes} classes")
    strange = ~np.isin(rows.sources, list(Source))
    if strange.any():
        raise WrongUse(f"source {rows.sources[strange][0]} is none of {', '.join(_source_texts())}")
    by_model = rows.sources == Source.MODEL
    if (rows.models[~by_model] != NO_MODEL).any():
        raise WrongUse("a row that is no model's names a model version; leave it out")
    announced.require(connection, np.unique(rows.models[by_model]).tolist())


def write(connection: sa.Connection, change: Change, rows: LabelRows) -> Written:
    """Put rows in force where they may replace what is there, by the rule of `may_replace`."""
    wrote = 0
    for part in rows.parts(ROWS_AT_ONCE):
        stage_rows(connection, part, now=change.now)
        contradicted = _collect_opinions(connection, change, rows=part)
        wrote += _put(connection, change, incoming, layer=IN_FORCE)
        if contradicted:
            _put(connection, change, opinions, layer=OPINION)
    return Written(change.revision, wrote, len(rows) - wrote)


def may_replace(new: Any, old: Any, *, over_imports: bool) -> sa.ColumnElement[bool]:
    """Whether one row may take another's place, in SQL, from the columns of both.

    A human replaces everything. An import replaces models, and imports that say something else. A model
    replaces older models, and imports if it was asked to.
    """
    older = sa.and_(old.source == _MODEL, old.model < new.model)
    by_model = sa.or_(older, old.source == _IMPORT) if over_imports else older
    corrected = sa.and_(old.source == _IMPORT, old.label != new.label)
    by_import = sa.or_(old.source == _MODEL, corrected)
    return sa.or_(
        new.source == _HUMAN,
        sa.and_(new.source == _IMPORT, by_import),
        sa.and_(new.source == _MODEL, by_model),
    )


def _put(connection: sa.Connection, change: Change, staged: sa.Table, *, layer: int) -> int:
    """How many rows of a layer were written."""
    _remember(connection, change, staged, layer=layer)
    statement = insert(connection, labels)
    rows = sa.select(
        sa.literal(change.dataset, sa.Integer),
        sa.literal(layer, sa.SmallInteger),
        *(staged.c[name] for name in GIVEN),
        sa.literal(change.revision, sa.BigInteger),
    ).where(sa.true())  # without a condition SQLite takes the conflict's ON for a join's
    columns = ["dataset", "layer", *GIVEN, "revision"]
    # The rule stands in the statement itself: a row that came between is protected too.
    put = statement.from_select(columns, rows).on_conflict_do_update(
        index_elements=_PLACE,
        set_={name: statement.excluded[name] for name in CONTENT},
        where=may_replace(statement.excluded, labels.c, over_imports=change.over_imports),
    )
    return count_of(connection, put)


def _remember(connection: sa.Connection, change: Change, staged: sa.Table, *, layer: int) -> None:
    """Rows that are about to be replaced go to the history; for new ones, that there was none."""
    old = labels.alias("old")
    replaced = may_replace(staged.c, old.c, over_imports=change.over_imports)
    rows = (
        sa.select(
            sa.literal(change.revision, sa.BigInteger),
            sa.literal(change.dataset, sa.Integer),
            sa.literal(layer, sa.SmallInteger),
            staged.c.sample,
            *(old.c[name] for name in CONTENT),
        )
        .select_from(staged.outerjoin(old, _same(staged, old, change, layer=layer)))
        .where(sa.or_(old.c.sample.is_(None), replaced))
    )
    columns = ["replaced", *_PLACE, *CONTENT]
    # A revision that writes a row twice remembers what was there before the first time.
    connection.execute(insert(connection, history).from_select(columns, rows).on_conflict_do_nothing())


def _collect_opinions(connection: sa.Connection, change: Change, *, rows: LabelRows) -> int:
    """What models say where the label in force is, or becomes, another's: rows refused, rows replaced.

    How many there are.
    """
    clear(connection, opinions)
    old = labels.alias("old")
    joined = incoming.outerjoin(old, _same(incoming, old, change, layer=IN_FORCE))
    protected = [_HUMAN] if change.over_imports else [_HUMAN, _IMPORT]
    # coalesce, because SQLite turns an outer join whose condition no absent row meets into an inner one, and
    # then walks through the whole dataset.
    there = sa.func.coalesce(old.c.source, -1)
    by_model = incoming.c.source == _MODEL
    refused = _columns(incoming).select_from(joined).where(by_model, there.in_(protected))
    replaced = _columns(old).select_from(joined).where(~by_model, there == _MODEL)
    of_models = rows.sources == Source.MODEL
    wanted = [*([refused] if of_models.any() else []), *([replaced] if not of_models.all() else [])]
    return sum(count_of(connection, opinions.insert().from_select(list(GIVEN), one)) for one in wanted)


def _columns(table: sa.FromClause) -> sa.Select[Any]:
    return sa.select(*(table.c[name] for name in GIVEN))


def _same(staged: sa.Table, old: sa.FromClause, change: Change, *, layer: int) -> sa.ColumnElement[bool]:
    there = (old.c.dataset == change.dataset, old.c.layer == layer)
    return sa.and_(*there, old.c.sample == staged.c.sample)


def _source_texts() -> list[str]:
    return [f"{source.value} ({source.name.lower()})" for source in Source]
