"""The tables of a label database; docs/reference/labels.md describes them, `migrations` makes them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

METADATA = sa.MetaData()
VERSION_TABLE = "label_schema"
"""Holds the number of the last step of `migrations` that was run."""

IN_FORCE, OPINION = 0, 1
"""Layers of `labels`: the label that counts, and what the last model says where another's label counts."""

DOUBT = "0.1"
"""The margin below which a model is in doubt: rows that are reviewed first, the only ones in their index."""

# SQLite counts rows up only in a column that is called INTEGER; its integers have 64 bits all the same.
Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

CONTENT = ("label", "score", "margin", "source", "model", "time", "revision")
"""What a row says, beside the sample that it says it of."""


def _content(*, optional: bool) -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("label", sa.Integer, nullable=optional),
        sa.Column("score", sa.REAL),
        sa.Column("margin", sa.REAL),
        sa.Column("source", sa.SmallInteger, nullable=optional),
        sa.Column("model", sa.BigInteger),
        sa.Column("time", sa.BigInteger, nullable=optional),
        sa.Column("revision", sa.BigInteger, nullable=optional),
    )


datasets = sa.Table(
    "datasets",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
)

revisions = sa.Table(
    "revisions",
    METADATA,
    sa.Column("number", Number, primary_key=True),
    sa.Column("dataset", sa.Integer, sa.ForeignKey("datasets.number")),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("key", sa.Text, unique=True),
    sa.Column("model", sa.BigInteger),
    sa.Column("time", sa.BigInteger, nullable=False),
    sa.Column("wrote", sa.BigInteger, nullable=False),
    sa.Column("kept", sa.BigInteger, nullable=False),
    sa.Column("undoes", sa.BigInteger),
    sa.Column("undone_by", sa.BigInteger),
)

chunks = sa.Table(
    "chunks",
    METADATA,
    sa.Column("revision", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("chunk", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("wrote", sa.BigInteger, nullable=False),
    sa.Column("kept", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

models = sa.Table(
    "models",
    METADATA,
    sa.Column("announced", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("parent", sa.Text),
)

classes = sa.Table(
    "classes",
    METADATA,
    sa.Column("dataset", sa.Integer, sa.ForeignKey("datasets.number"), primary_key=True, autoincrement=False),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("merged_into", sa.Integer),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("dataset", "name", name="classes_names"),
)

class_history = sa.Table(
    "class_history",
    METADATA,
    sa.Column("replaced", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("dataset", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("merged_into", sa.Integer),
    sa.Column("revision", sa.BigInteger, nullable=False),
)

labels = sa.Table(
    "labels",
    METADATA,
    sa.Column("dataset", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("layer", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("sample", sa.BigInteger, primary_key=True, autoincrement=False),
    *_content(optional=False),
    sqlite_with_rowid=False,
)

history = sa.Table(
    "history",
    METADATA,
    sa.Column("replaced", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("dataset", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("layer", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("sample", sa.BigInteger, primary_key=True, autoincrement=False),
    *_content(optional=True),
    sqlite_with_rowid=False,
)

# The source stands last so that counts need the index only.
_counted = sa.text(f"layer = {IN_FORCE}")
sa.Index(
    "labels_by_class",
    labels.c.dataset,
    labels.c.label,
    labels.c.sample,
    labels.c.source,
    sqlite_where=_counted,
    postgresql_where=_counted,
)
# Only rows in doubt: neighbours by id lie anywhere in this index, so each row in it costs a page to write.
_doubtful = sa.text(f"layer = {IN_FORCE} AND source = 1 AND margin < {DOUBT}")
sa.Index(
    "labels_by_margin",
    labels.c.dataset,
    labels.c.margin,
    labels.c.sample,
    sqlite_where=_doubtful,
    postgresql_where=_doubtful,
)


def layer_is(layer: int, table: sa.FromClause = labels) -> sa.ColumnElement[bool]:
    """Written out, not a parameter: a partial index serves only a statement that says so itself."""
    return table.c.layer == sa.literal_column(str(layer))


def row_of(
    dataset: int, layer: int, sample: sa.ColumnElement[int], table: sa.FromClause = labels
) -> sa.ColumnElement[bool]:
    """Whether a row is the one of this sample in a layer."""
    return sa.and_(table.c.dataset == dataset, layer_is(layer, table), table.c.sample == sample)
