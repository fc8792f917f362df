"""Undo: what a revision replaced comes back exactly as it was, by a revision of its own."""

from __future__ import annotations

import sqlalchemy as sa

from headwater.errors import LabelRefused
from headwater.store.labels import revisions
from headwater.store.labels.classes import load as load_classes
from headwater.store.labels.revisions import Deed, Revision, Written
from headwater.store.labels.schema import CONTENT, IN_FORCE, class_history, classes, history, labels
from headwater.store.labels.schema import revisions as log
from headwater.store.labels.staging import insert

_PLACE = ["dataset", "layer", "sample"]
_CLASS_PLACE = ["dataset", "number"]
_CLASS_CONTENT = ["name", "merged_into", "revision"]


def choose(connection: sa.Connection, dataset: int, number: int | None) -> Revision:
    """The revision with this number, or the last one of the dataset that is neither undone nor an undo.

    Raises `LabelRefused` for one that cannot be undone, and says why.
    """
    if number is None:
        usual = (log.c.dataset == dataset, log.c.kind != "undo", log.c.undone_by.is_(None))
        found = revisions.find(connection, *usual)
        if found is None:
            raise LabelRefused("nothing is left to undo in this dataset")
        return found
    found = revisions.find(connection, log.c.number == number, log.c.dataset == dataset)
    if found is None:
        raise LabelRefused(f"revision {number} is none of this dataset; `headwater labels log` lists them")
    if found.undone_by is not None:
        raise LabelRefused(f"revision {number} was undone by {found.undone_by}; undo that one to redo it")
    return found


def undo(connection: sa.Connection, dataset: int, target: Revision, *, author: str, now: int) -> Written:
    """Take back a revision.

    Raises `LabelRefused`, naming the later revision, where a row of it was changed since.
    """
    _refuse_if_changed(connection, target)
    note = f"revision {target.number}: {target.kind} {target.note}".strip()
    deed = Deed("undo", author=author, note=note, undoes=target.number)
    number = revisions.add(connection, dataset, deed, now=now)
    rows = _restore_rows(connection, target.number, by=number)
    _restore_classes(connection, dataset, target.number, by=number)
    _mark(connection, target.number, by=number)
    written = Written(number, rows, 0)
    revisions.count(connection, written)
    return written


def _mark(connection: sa.Connection, target: int, *, by: int | None) -> None:
    """The revision is undone; so what it had undone, if it was an undo, is in force again, and so on."""
    number: int | None = target
    while number is not None:
        where = log.c.number == number
        connection.execute(log.update().where(where).values(undone_by=by))
        by = number if by is None else None
        number = connection.execute(sa.select(log.c.undoes).where(where)).scalar_one()


def _refuse_if_changed(connection: sa.Connection, target: Revision) -> None:
    for now, before, place in ((labels, history, _PLACE), (classes, class_history, _CLASS_PLACE)):
        count, last = connection.execute(_changed(target, now, before, place)).one()
        if count:
            what = "row" if now is labels else "class"
            of = "" if last is None else f", last by revision {last}; undo that first"
            raise LabelRefused(
                f"revision {target.number} cannot be undone: {count} {what}{'' if count == 1 else 's'} of it "
                f"changed since{of}"
            )


def _changed(target: Revision, now: sa.Table, before: sa.Table, place: list[str]) -> sa.Executable:
    """Counts what is not as the revision left it, and says which revision was there last.

    A revision leaves its own number; an undo leaves the numbers of the rows that it brought back.
    """
    touched = before.alias("touched")
    joined = touched.outerjoin(now, sa.and_(*(now.c[name] == touched.c[name] for name in place)))
    left: sa.ColumnElement[int | None] = sa.literal(target.number, sa.BigInteger)
    if target.undoes is not None:
        back = before.alias("back")
        same = [back.c[name] == touched.c[name] for name in place]
        joined = joined.outerjoin(back, sa.and_(back.c.replaced == target.undoes, *same))
        left = back.c.revision
    changed = sa.and_(touched.c.replaced == target.number, now.c.revision.is_distinct_from(left))
    return sa.select(sa.func.count(), sa.func.max(now.c.revision)).select_from(joined).where(changed)


def _restore_rows(connection: sa.Connection, target: int, *, by: int) -> int:
    """How many rows in force were touched. What is there now goes to the history, for an undo of the undo."""
    touched = history.alias("touched")
    same = sa.and_(*(labels.c[name] == touched.c[name] for name in _PLACE))
    now = (
        sa.select(
            sa.literal(by, sa.BigInteger),
            *(touched.c[name] for name in _PLACE),
            *(labels.c[name] for name in CONTENT),
        )
        .select_from(touched.outerjoin(labels, same))
        .where(touched.c.replaced == target)
    )
    connection.execute(history.insert().from_select(["replaced", *_PLACE, *CONTENT], now))
    _remove_new(connection, target)
    _bring_back(connection, target)
    counted = (history.c.replaced == by, history.c.layer == IN_FORCE)
    return connection.execute(sa.select(sa.func.count()).select_from(history).where(*counted)).scalar_one()


def _remove_new(connection: sa.Connection, target: int) -> None:
    """Rows where there was none before."""
    absent = (history.c.replaced == target, history.c.label.is_(None))
    where = sa.select(history.c.dataset, history.c.layer).where(*absent).distinct()
    for dataset, layer in connection.execute(where).all():
        place = (history.c.dataset == dataset, history.c.layer == layer)
        samples = sa.select(history.c.sample).where(*absent, *place)
        here = (labels.c.dataset == dataset, labels.c.layer == layer)
        connection.execute(labels.delete().where(*here, labels.c.sample.in_(samples)))


def _bring_back(connection: sa.Connection, target: int) -> None:
    columns = [*_PLACE, *CONTENT]
    there = (history.c.replaced == target, history.c.label.is_not(None))
    statement = insert(connection, labels)
    rows = sa.select(*(history.c[name] for name in columns)).where(*there)
    back = statement.from_select(columns, rows).on_conflict_do_update(
        index_elements=_PLACE, set_={name: statement.excluded[name] for name in CONTENT}
    )
    connection.execute(back)


def _restore_classes(connection: sa.Connection, dataset: int, target: int, *, by: int) -> None:
    """One revision changes one class at most, so this may take them one by one."""
    columns = [*_CLASS_PLACE, *_CLASS_CONTENT]
    query = sa.select(*(class_history.c[name] for name in columns)).where(class_history.c.replaced == target)
    for row in connection.execute(query).mappings().all():
        place = sa.and_(*(classes.c[name] == row[name] for name in _CLASS_PLACE))
        taken = sa.and_(classes.c.dataset == dataset, classes.c.name == row["name"], sa.not_(place))
        if connection.execute(sa.select(classes.c.number).where(taken)).first():
            raise LabelRefused(f"another class is called {row['name']!r} now; rename it first")
        now = sa.select(sa.literal(by, sa.BigInteger), *(classes.c[name] for name in columns)).where(place)
        connection.execute(class_history.insert().from_select(["replaced", *columns], now))
        back = {name: row[name] for name in _CLASS_CONTENT}
        connection.execute(classes.update().where(place).values(back))
    if load_classes(connection, dataset).loops:
        raise LabelRefused(f"revision {target} cannot be undone: two classes would be merged into each other")
