"""Labels in force and opinions, their history, revisions, classes and models."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# What SQLite's planner assumes of the tables: rows, then rows for each further column of the index. Without
# it a dataset is taken for ten rows, and sorted for each page that is asked for.
_STATISTICS = {
    ("labels", "labels"): "100000000 10000000 5000000 1",
    ("labels", "labels_by_class"): "100000000 10000000 10000 1 1",
    ("labels", "labels_by_margin"): "10000000 1000000 10 1",
    ("history", "history"): "100000000 100000 100000 50000 1",
}


def upgrade() -> None:
    _make_ledgers()
    _make_classes()
    _make_labels()
    if op.get_bind().dialect.name == "sqlite":
        _assume_statistics()


def downgrade() -> None:
    for name in ("history", "labels", "class_history", "classes", "models"):
        op.drop_table(name)
    for name in ("chunks", "revisions", "datasets"):
        op.drop_table(name)


def _make_ledgers() -> None:
    op.create_table(
        "datasets",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
    )
    op.create_table(
        "revisions",
        sa.Column("number", _NUMBER, primary_key=True),
        sa.Column("dataset", sa.Integer, sa.ForeignKey("datasets.number")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("kind", "author", "note")),
        sa.Column("key", sa.Text, unique=True),
        sa.Column("model", sa.BigInteger),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("time", "wrote", "kept")),
        *(sa.Column(name, sa.BigInteger) for name in ("undoes", "undone_by")),
    )
    op.create_table(
        "chunks",
        *_key(revision=sa.BigInteger, chunk=sa.BigInteger),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("wrote", "kept")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "models",
        *_key(announced=sa.BigInteger),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("parent", sa.Text),
    )


def _make_classes() -> None:
    op.create_table(
        "classes",
        *_key(dataset=sa.Integer, number=sa.Integer),
        *_class_content(),
        sa.ForeignKeyConstraint(["dataset"], ["datasets.number"]),
        sa.UniqueConstraint("dataset", "name", name="classes_names"),
    )
    op.create_table(
        "class_history",
        *_key(replaced=sa.BigInteger, dataset=sa.Integer, number=sa.Integer),
        *_class_content(),
    )


def _make_labels() -> None:
    place: dict[str, Any] = {"dataset": sa.Integer, "layer": sa.SmallInteger, "sample": sa.BigInteger}
    op.create_table("labels", *_key(**place), *_content(optional=False), sqlite_with_rowid=False)
    op.create_table(
        "history",
        *_key(replaced=sa.BigInteger, **place),
        *_content(optional=True),
        sqlite_with_rowid=False,
    )
    _index("labels_by_class", ["dataset", "label", "sample", "source"], where="layer = 0")
    doubtful = "layer = 0 AND source = 1 AND margin < 0.1"
    _index("labels_by_margin", ["dataset", "margin", "sample"], where=doubtful)


def _assume_statistics() -> None:
    op.execute("ANALYZE")  # makes the table of statistics
    op.execute("DELETE FROM sqlite_stat1")
    for (table, index), numbers in _STATISTICS.items():
        op.execute(f"INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('{table}', '{index}', '{numbers}')")


def _key(**columns: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, primary_key=True, autoincrement=False) for name, kind in columns.items()]


def _class_content() -> list[sa.Column[Any]]:
    return [
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("merged_into", sa.Integer),
        sa.Column("revision", sa.BigInteger, nullable=False),
    ]


def _content(*, optional: bool) -> list[sa.Column[Any]]:
    return [
        sa.Column("label", sa.Integer, nullable=optional),
        sa.Column("score", sa.REAL),
        sa.Column("margin", sa.REAL),
        sa.Column("source", sa.SmallInteger, nullable=optional),
        sa.Column("model", sa.BigInteger),
        sa.Column("time", sa.BigInteger, nullable=optional),
        sa.Column("revision", sa.BigInteger, nullable=optional),
    ]


def _index(name: str, columns: list[str], *, where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, "labels", columns, sqlite_where=condition, postgresql_where=condition)
