"""Columns in a temporary table of the connection, where statements can join them.

A PostgreSQL may be across a slow link: columns go there in its binary form, and a column that holds one value
goes as that value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.dialects import postgresql, sqlite

from headwater.store.labels.rows import NO_MODEL, LabelRows

GIVEN = ("sample", "label", "score", "margin", "source", "model", "time")
"""What a writer says of a row; the rest is the database's."""

Columns = Mapping[str, NDArray[Any]]
"""Columns of one length, `sample` among them. NaN, and the number of no model, stand for NULL."""

_TEMPORARY = sa.MetaData()
_MADE = "tables that were made"
_BINARY = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"
_NULLS = {"score": float("nan"), "margin": float("nan"), "model": NO_MODEL}


def _table(name: str, *content: sa.Column[object], keyed: bool = True) -> sa.Table:
    sample = sa.Column("sample", sa.BigInteger, primary_key=keyed, autoincrement=False)
    return sa.Table(name, _TEMPORARY, sample, *content, prefixes=["TEMPORARY"])


def _like_labels(name: str, *, keyed: bool = True) -> sa.Table:
    return _table(
        name,
        sa.Column("label", sa.Integer),
        sa.Column("score", sa.REAL),
        sa.Column("margin", sa.REAL),
        sa.Column("source", sa.SmallInteger),
        sa.Column("model", sa.BigInteger),
        sa.Column("time", sa.BigInteger),
        keyed=keyed,
    )


incoming = _like_labels("incoming_labels")
opinions = _like_labels("incoming_opinions")
asked = _table("asked_samples")
_copied = _like_labels("copied_labels", keyed=False)


def insert(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """An insert that can say what is to happen to rows that are there."""
    return sqlite.insert(table) if is_sqlite(connection) else postgresql.insert(table)


def is_sqlite(connection: sa.Connection) -> bool:
    return connection.dialect.name == "sqlite"


def count_of(connection: sa.Connection, statement: sa.Insert) -> int:
    """Run it; how many rows it has inserted or changed, which no driver is asked for unless told to."""
    return connection.execute(statement, execution_options={"preserve_rowcount": True}).rowcount


def clear(connection: sa.Connection, table: sa.Table) -> None:
    """An empty temporary table."""
    made: set[str] = connection.info.setdefault(_MADE, set())
    if table.name not in made:
        connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
        made.add(table.name)
    # A table that is deleted from and filled again within one transaction grows in PostgreSQL.
    verb = "DELETE FROM" if is_sqlite(connection) else "TRUNCATE TABLE"
    connection.exec_driver_sql(f"{verb} {table.name}")


def forget(connection: sa.Connection) -> None:
    """After a transaction that was rolled back it is not known which tables are there: its own are not."""
    if not connection.invalidated:  # the next one has none at all
        connection.info.pop(_MADE, None)


def stage_rows(connection: sa.Connection, rows: LabelRows, *, now: int) -> None:
    """The rows in `incoming`; those without a time get this one."""
    times = np.where(rows.times == 0, now, rows.times)
    given = (rows.samples, rows.labels, rows.scores, rows.margins, rows.sources, rows.models, times)
    columns: Columns = dict(zip(GIVEN, given, strict=True))
    clear(connection, incoming)
    if is_sqlite(connection):
        _insert(connection, incoming, columns)
    elif len(rows):
        _copy_varying(connection, incoming, columns)


def stage_samples(connection: sa.Connection, samples: NDArray[np.int64]) -> None:
    """The ids in `asked`, each once."""
    columns = {"sample": np.unique(samples)}
    clear(connection, asked)
    if is_sqlite(connection):
        _insert(connection, asked, columns)
    else:
        _copy(connection, asked, columns)


def insert_texts(
    connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    """New rows of a table, with text among their values."""
    if not rows:
        return
    names = ", ".join(columns)
    if is_sqlite(connection):
        marks = ", ".join("?" * len(columns))
        connection.exec_driver_sql(f"INSERT INTO {table.name} ({names}) VALUES ({marks})", list(rows))
        return
    with (
        driver_of(connection).cursor() as cursor,
        cursor.copy(f"COPY {table.name} ({names}) FROM STDIN") as copy,
    ):
        for row in rows:
            copy.write_row(row)


def fetch_binary(connection: sa.Connection, query: sa.Select[Any]) -> list[tuple[Any, ...]]:
    """What PostgreSQL answers, in its binary form: bytes would be twice as long in the other."""
    compiled = query.compile(dialect=connection.dialect, compile_kwargs={"render_postcompile": True})
    found: list[tuple[Any, ...]] = (
        driver_of(connection).execute(str(compiled), compiled.params, binary=True).fetchall()
    )
    return found


def driver_of(connection: sa.Connection) -> Any:
    """The driver's own connection."""
    driver = connection.connection.driver_connection
    assert driver is not None
    return driver


def _insert(connection: sa.Connection, table: sa.Table, columns: Columns) -> None:
    if not len(columns["sample"]):
        return
    marks = ", ".join("?" * len(columns))
    rows = list(zip(*(_to_list(name, column) for name, column in columns.items()), strict=True))
    connection.exec_driver_sql(f"INSERT INTO {table.name} VALUES ({marks})", rows)


def _to_list(name: str, column: NDArray[Any]) -> list[Any]:
    """With None where there is nothing."""
    absent = np.isnan(column) if column.dtype.kind == "f" else None
    values: list[Any] = pa.array(column, mask=column == NO_MODEL if name == "model" else absent).to_pylist()
    return values


def _copy_varying(connection: sa.Connection, table: sa.Table, columns: Columns) -> None:
    varying = {name: column for name, column in columns.items() if name == "sample" or not _is_one(column)}
    clear(connection, _copied)
    _copy(connection, _copied, varying)
    values = [
        _without_nulls(_copied.c[name]) if name in varying else _only(table.c[name], column[0])
        for name, column in columns.items()
    ]
    connection.execute(table.insert().from_select(list(columns), sa.select(*values)))


def _is_one(column: NDArray[Any]) -> bool:
    return bool((column == column[0]).all() or (column != column).all())


def _without_nulls(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    none = _NULLS.get(column.name)
    return column if none is None else sa.func.nullif(column, sa.cast(sa.literal(none), column.type))


def _only(column: sa.Column[Any], value: Any) -> sa.ColumnElement[Any]:
    nothing = value != value or (column.name == "model" and value == NO_MODEL)
    return sa.cast(sa.null() if nothing else sa.literal(value.item()), column.type)


def _copy(connection: sa.Connection, table: sa.Table, columns: Columns) -> None:
    """Rows of PostgreSQL's binary COPY: how many values, and each behind its length."""
    kinds = {name: _kind(table.c[name]) for name in columns}
    fields: list[tuple[str, str]] = [("values", ">i2")]
    for name, kind in kinds.items():
        fields += [(f"length of {name}", ">i4"), (name, kind)]
    rows = np.empty(len(columns["sample"]), np.dtype(fields))
    rows["values"] = len(columns)
    for name, column in columns.items():
        rows[f"length of {name}"], rows[name] = np.dtype(kinds[name]).itemsize, column
    names = ", ".join(columns)
    with (
        driver_of(connection).cursor() as cursor,
        cursor.copy(f"COPY {table.name} ({names}) FROM STDIN (FORMAT binary)") as copy,
    ):
        copy.write(b"".join((_BINARY, rows.tobytes(), _END)))


def _kind(column: sa.Column[Any]) -> str:
    """As numpy writes what PostgreSQL reads."""
    kinds = ((sa.BigInteger, ">i8"), (sa.SmallInteger, ">i2"), (sa.Integer, ">i4"), (sa.REAL, ">f4"))
    return next(kind for type_, kind in kinds if isinstance(column.type, type_))
