"""Columns in a temporary table of the connection, where statements can join them."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.dialects import postgresql, sqlite

from headwater.store.labels.rows import NO_MODEL, LabelRows

GIVEN = ("sample", "label", "score", "margin", "source", "model", "time")
"""What a writer says of a row; the rest is the database's."""

_TEMPORARY = sa.MetaData()


def _table(name: str, *content: sa.Column[object]) -> sa.Table:
    sample = sa.Column("sample", sa.BigInteger, primary_key=True, autoincrement=False)
    return sa.Table(name, _TEMPORARY, sample, *content, prefixes=["TEMPORARY"])


def _like_labels(name: str) -> sa.Table:
    return _table(
        name,
        sa.Column("label", sa.Integer),
        sa.Column("score", sa.REAL),
        sa.Column("margin", sa.REAL),
        sa.Column("source", sa.SmallInteger),
        sa.Column("model", sa.BigInteger),
        sa.Column("time", sa.BigInteger),
    )


incoming = _like_labels("incoming_labels")
opinions = _like_labels("incoming_opinions")
asked = _table("asked_samples")


def insert(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """An insert that can say what is to happen to rows that are there."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def count_of(connection: sa.Connection, statement: sa.Insert) -> int:
    """Run it; how many rows it has inserted or changed, which no driver is asked for unless told to."""
    return connection.execute(statement, execution_options={"preserve_rowcount": True}).rowcount


def clear(connection: sa.Connection, table: sa.Table) -> None:
    """An empty temporary table."""
    connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
    # A table that is deleted from and filled again within one transaction grows in PostgreSQL.
    verb = "DELETE FROM" if connection.dialect.name == "sqlite" else "TRUNCATE TABLE"
    connection.exec_driver_sql(f"{verb} {table.name}")


def stage_rows(connection: sa.Connection, rows: LabelRows, *, now: int) -> None:
    """The rows in `incoming`; those without a time get this one."""
    models = pa.array(rows.models, mask=rows.models == NO_MODEL)
    times = np.where(rows.times == 0, now, rows.times)
    columns = [rows.samples, rows.labels, _floats(rows.scores), _floats(rows.margins), rows.sources]
    _fill(connection, incoming, [*map(pa.array, columns), models, pa.array(times)])


def stage_samples(connection: sa.Connection, samples: NDArray[np.int64]) -> None:
    """The ids in `asked`, each once."""
    _fill(connection, asked, [pa.array(np.unique(samples))])


def _floats(column: NDArray[np.float32]) -> pa.Array:
    return pa.array(column, from_pandas=True)  # NaN is null


def _fill(connection: sa.Connection, table: sa.Table, columns: list[pa.Array]) -> None:
    clear(connection, table)
    batch = pa.RecordBatch.from_arrays(columns, names=table.columns.keys())
    if not len(batch):
        return
    if connection.dialect.name == "sqlite":
        marks = ", ".join("?" * batch.num_columns)
        rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        connection.exec_driver_sql(f"INSERT INTO {table.name} VALUES ({marks})", rows)
    else:
        _copy(connection, table.name, batch)


def _copy(connection: sa.Connection, table: str, batch: pa.RecordBatch) -> None:
    text = io.BytesIO()
    pacsv.write_csv(batch, text, pacsv.WriteOptions(include_header=False))
    driver = connection.connection.driver_connection
    assert driver is not None
    with driver.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT csv)") as copy:
        copy.write(text.getbuffer())
