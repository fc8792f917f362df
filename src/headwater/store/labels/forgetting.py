"""Rows of samples that are to be forgotten: deleted, with their history, and gone from the files too."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from headwater.errors import LabelError
from headwater.store.labels.schema import datasets, history, labels, models

_AT_ONCE = 500
_WAIT_SECONDS = 10.0
_PAUSE_SECONDS = 0.05


def delete(connection: sa.Connection, dataset: str, samples: NDArray[np.int64]) -> int:
    """Delete what is and was said of these samples, in all layers; how many rows."""
    number = connection.execute(sa.select(datasets.c.number).where(datasets.c.name == dataset)).scalar()
    if number is None:
        return 0
    found = 0
    for some in _parts(samples):
        for table in (labels, history):
            statement = sa.delete(table).where(table.c.dataset == number, table.c.sample.in_(some))
            found += connection.execute(statement).rowcount
    return found


def count(connection: sa.Connection, dataset: str, samples: NDArray[np.int64]) -> int:
    """How many rows `delete` would delete."""
    number = connection.execute(sa.select(datasets.c.number).where(datasets.c.name == dataset)).scalar()
    if number is None:
        return 0
    queries = (
        sa.select(sa.func.count()).where(table.c.dataset == number, table.c.sample.in_(some))
        for some in _parts(samples)
        for table in (labels, history)
    )
    return sum(int(connection.execute(query).scalar_one()) for query in queries)


def count_by(connection: sa.Connection, dataset: str, digests: Collection[str]) -> int:
    """Rows of a dataset, in force or beside others' labels, that one of these versions of models wrote."""
    number = connection.execute(sa.select(datasets.c.number).where(datasets.c.name == dataset)).scalar()
    wrote = sa.select(models.c.announced).where(models.c.digest.in_(list(digests)))
    if number is None:
        return 0
    query = sa.select(sa.func.count()).where(labels.c.dataset == number, labels.c.model.in_(wrote))
    return int(connection.execute(query).scalar_one())


def scrub(engine: sa.Engine) -> None:
    """Write the tables anew, so that no page, and no log of SQLite's, holds what was deleted.

    It takes as long as copying them does; other writers wait. What PostgreSQL archives is not its business.
    """
    held = engine.raw_connection()
    try:
        driver: Any = held.driver_connection
        if engine.dialect.name == "sqlite":
            _scrub_sqlite(driver)
        else:
            _scrub_postgresql(driver)
    finally:
        held.close()


def _scrub_sqlite(driver: Any) -> None:
    driver.execute("VACUUM")
    end = time.monotonic() + _WAIT_SECONDS
    while driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() > end:
            raise LabelError(
                "somebody has been reading the label database all the while, so its log still holds deleted "
                "rows; end that, and forget again"
            )
        time.sleep(_PAUSE_SECONDS)


def _scrub_postgresql(driver: Any) -> None:
    driver.rollback()
    driver.autocommit = True
    try:
        for table in (labels, history):
            driver.execute(f"VACUUM (FULL) {table.name}")
    finally:
        driver.autocommit = False


def _parts(samples: NDArray[np.int64]) -> Iterator[list[int]]:
    for start in range(0, len(samples), _AT_ONCE):
        yield samples[start : start + _AT_ONCE].tolist()
