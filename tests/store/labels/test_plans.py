"""How SQLite and PostgreSQL go about our statements: by index, where few rows are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from headwater.store.labels import Source
from headwater.store.labels.database import LabelDatabase
from headwater.store.labels.wanted import LabelQuery
from labelled import NAMES, Kind, Templates, announce, digest, human, imported, predicted

ROWS = 4000


def fill(database: LabelDatabase) -> None:
    """Two datasets, of many rows of models, some imports and some opinions."""
    first = announce(database, 1)
    announce(database, 2)
    samples = np.arange(ROWS)
    for name in ("others", "photos"):
        database.adopt(name, NAMES)
        database.write(name, predicted(samples, samples % 4, first, margins=np.sin(samples)))
        database.write(name, imported(samples[::9], samples[::9] % 3))


@pytest.fixture
def db(kind: Kind) -> Iterator[LabelDatabase]:
    with closing(kind.open()) as database:
        fill(database)
        if kind.name == "postgresql":
            with database._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM ANALYZE")
        yield database


@pytest.fixture
def lite(label_templates: Templates, tmp_path: Path) -> Iterator[LabelDatabase]:
    """SQLite only: it counts no rows before it makes a plan, so the plan must be right without."""
    with closing(label_templates.sqlite_kind(tmp_path).open()) as database:
        fill(database)
        yield database


def plans(db: LabelDatabase, work: Callable[[], object], about: str) -> list[str]:
    """How the statements were run that hold this text."""
    found: list[tuple[str, Any]] = []

    def note(_c: Any, _u: Any, statement: str, parameters: Any, _x: Any, many: bool) -> None:
        if about in statement and not many and not statement.startswith("CREATE"):
            found.append((statement, parameters))

    sa.event.listen(db._engine, "before_cursor_execute", note)
    explain = "EXPLAIN QUERY PLAN " if db._engine.dialect.name == "sqlite" else "EXPLAIN "
    told = []
    work()
    sa.event.remove(db._engine, "before_cursor_execute", note)
    with db._engine.connect() as connection:
        for statement, parameters in found:
            cursor = connection.connection.cursor()
            cursor.execute(explain + statement, parameters)
            told.append("\n".join(str(row[-1]) for row in cursor.fetchall()))
    assert told, about
    return told


READS: dict[str, tuple[Callable[[LabelDatabase], object], str]] = {
    "page": (lambda db: db.search("photos", after=50, limit=5), "labels"),
    "class": (lambda db: db.search("photos", LabelQuery(classes=("bee",)), limit=5), "labels_by_class"),
    "counts": (lambda db: db.counts("photos"), "labels_by_class"),
    "margin": (lambda db: db.review("photos", limit=5), "labels_by_margin"),
    "stale": (lambda db: db.stale("photos", digest(2), limit=5), "labels"),
}


@pytest.mark.parametrize("name", READS)
def test_reads_go_by_an_index_and_sort_nothing(db: LabelDatabase, name: str) -> None:
    work, index = READS[name]
    (plan,) = plans(db, lambda: work(db), "FROM labels")
    if db._engine.dialect.name == "sqlite":
        wanted = "PRIMARY KEY" if index == "labels" else f"INDEX {index} "
        assert f"SEARCH labels USING {wanted}" in plan or f"SEARCH labels USING COVERING {wanted}" in plan
        assert "TEMP B-TREE" not in plan
        assert ("COVERING" in plan) == (name == "counts")
    elif name != "counts":  # of so few rows PostgreSQL rather reads all
        assert ("labels_pkey" if index == "labels" else index) in plan
        assert "Sort" not in plan


SOME = range(0, ROWS, 40)
LOOKS: dict[str, tuple[Callable[[LabelDatabase], object], int]] = {
    "get": (lambda db: db.get("photos", SOME), 1),
    "pending": (lambda db: db.pending("photos", digest(2), SOME), 1),
    "pending of all": (lambda db: db.pending("photos", digest(2), SOME, of=list(Source)), 2),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_job_looks_up_its_own_samples_only(lite: LabelDatabase, name: str) -> None:
    """Block by block, whatever the size of the dataset; opinions only where they count."""
    work, times = LOOKS[name]
    (plan,) = plans(lite, lambda: work(lite), "FROM asked_samples LEFT")
    first, *others = [line for line in plan.splitlines() if line.startswith(("SEARCH", "SCAN"))]
    assert first.startswith("SCAN asked_samples")
    assert len(others) == times
    assert all("PRIMARY KEY (dataset=? AND layer=? AND sample=?)" in line for line in others)
    assert "TEMP B-TREE" not in plan


@pytest.mark.parametrize("rows", ["human", "model"])
def test_a_write_looks_up_its_own_rows_only(lite: LabelDatabase, rows: str) -> None:
    model = lite.model(digest(2)).number
    new = human([1, 2], [0, 0]) if rows == "human" else predicted([1, 2], [0, 0], model)
    for plan in plans(lite, lambda: lite.write("photos", new), "incoming_"):
        assert "SCAN old" not in plan
        assert "SCAN labels" not in plan
        for line in plan.splitlines():
            if line.startswith("SEARCH"):
                assert "(dataset=? AND layer=? AND sample=?)" in line


def test_disagreements_walk_through_the_opinions(lite: LabelDatabase) -> None:
    (plan,) = plans(lite, lambda: lite.review("photos", "disagreement", limit=3), "opinion")
    first, second = [line for line in plan.splitlines() if line.startswith(("SEARCH", "SCAN"))]
    assert first.startswith("SEARCH opinion USING PRIMARY KEY (dataset=? AND layer=?")
    assert second.startswith("SEARCH now USING PRIMARY KEY (dataset=? AND layer=? AND sample=?)")


def test_an_undo_touches_its_own_rows_only(lite: LabelDatabase) -> None:
    lite.write("photos", human([1, 2, ROWS + 1], [0, 0, 0]))
    for plan in plans(lite, lambda: lite.undo("photos"), "history"):
        for line in plan.splitlines():
            assert not line.startswith(("SCAN labels", "SCAN history", "SCAN touched"))
            if line.startswith("SEARCH labels"):
                assert "sample=?" in line


def test_sources_have_the_numbers_that_the_index_names() -> None:
    assert Source.MODEL.value == 1
