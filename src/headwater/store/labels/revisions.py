"""The log of a label database: who changed what, when, and how many rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import sqlalchemy as sa

from headwater.errors import LabelRefused
from headwater.store.labels.schema import chunks, datasets, revisions

KINDS = ("write", "enrol", "import", "rename", "merge", "undo", "announce")


@dataclass(frozen=True)
class Deed:
    """What a revision is going to be. `key` names it for a job that comes back to it."""

    kind: str
    author: str = ""
    note: str = ""
    key: str | None = None
    model: int | None = None
    undoes: int | None = None


@dataclass(frozen=True)
class Revision:
    """One change. `kept` counts rows that were to be written and were protected; times are as in rows."""

    number: int
    dataset: str | None
    kind: str
    author: str
    note: str
    key: str | None
    model: int | None
    time: int
    wrote: int
    kept: int
    undoes: int | None
    undone_by: int | None


@dataclass(frozen=True)
class Written:
    """What became of a write: rows that it changed, and rows that a stronger or newer label kept."""

    revision: int
    wrote: int
    kept: int


_COLUMNS = [datasets.c.name if column.name == "dataset" else column for column in revisions.c]


def add(connection: sa.Connection, dataset: int | None, deed: Deed, *, now: int) -> int:
    """The number of a new revision."""
    row = {
        "dataset": dataset,
        "kind": deed.kind,
        "author": deed.author,
        "note": deed.note,
        "key": deed.key,
        "model": deed.model,
        "undoes": deed.undoes,
        "time": now,
        "wrote": 0,
        "kept": 0,
    }
    made = connection.execute(revisions.insert().values(row))
    assert made.inserted_primary_key is not None
    return int(made.inserted_primary_key[0])


def count(connection: sa.Connection, written: Written) -> None:
    """Add to what a revision has written."""
    changed = {"wrote": revisions.c.wrote + written.wrote, "kept": revisions.c.kept + written.kept}
    connection.execute(revisions.update().where(revisions.c.number == written.revision).values(changed))


def get(connection: sa.Connection, number: int) -> Revision:
    """Raises `LabelRefused` if there is none."""
    found = find(connection, revisions.c.number == number)
    if found is None:
        raise LabelRefused(f"there is no revision {number}; `headwater labels log` lists them")
    return found


def find(connection: sa.Connection, *conditions: sa.ColumnElement[bool]) -> Revision | None:
    """The newest revision for which all this holds."""
    listed = listing(connection, *conditions, limit=1)
    return listed[0] if listed else None


def state(connection: sa.Connection) -> str:
    """A digest of the log, in short: another after each change of rows, and in another database."""
    of = revisions.c
    sums = [sa.func.sum(column) for column in (of.wrote, of.kept)]
    columns = (sa.func.count(), sa.func.max(of.number), sa.func.min(of.time), sa.func.max(of.time), *sums)
    found = connection.execute(sa.select(*columns)).one()
    return hashlib.blake2b(" ".join(map(str, found)).encode(), digest_size=16).hexdigest()


def listing(connection: sa.Connection, *conditions: sa.ColumnElement[bool], limit: int) -> list[Revision]:
    """Newest first."""
    joined = revisions.outerjoin(datasets, datasets.c.number == revisions.c.dataset)
    query = sa.select(*_COLUMNS).select_from(joined).where(*conditions)
    rows = connection.execute(query.order_by(revisions.c.number.desc()).limit(limit))
    return [Revision(*row) for row in rows]


def resume(connection: sa.Connection, dataset: int, deed: Deed, *, name: str, now: int) -> int:
    """The revision with this key, or a new one; `name` is that of the dataset.

    Raises `LabelRefused` where the key was another write's, or its revision was undone.
    """
    found = find(connection, revisions.c.key == deed.key)
    if found is None:
        return add(connection, dataset, deed, now=now)
    if (found.dataset, found.kind, found.model) != (name, deed.kind, deed.model):
        raise LabelRefused(
            f"key {deed.key!r} is that of revision {found.number}, a {found.kind} of model {found.model} "
            f"in dataset {found.dataset!r}; take another key"
        )
    if found.undone_by is not None:
        raise LabelRefused(
            f"revision {found.number} with key {deed.key!r} was undone by revision {found.undone_by}; "
            "take another key to write again"
        )
    return found.number


def chunk(connection: sa.Connection, revision: int, number: int) -> Written | None:
    """What an earlier write of this chunk did, if there was one."""
    where = (chunks.c.revision == revision, chunks.c.chunk == number)
    row = connection.execute(sa.select(chunks.c.wrote, chunks.c.kept).where(*where)).first()
    return None if row is None else Written(revision, *row)


def add_chunk(connection: sa.Connection, number: int, written: Written) -> None:
    """Note that this chunk is written."""
    row = {"revision": written.revision, "chunk": number, "wrote": written.wrote, "kept": written.kept}
    connection.execute(chunks.insert().values(row))
