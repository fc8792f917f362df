"""Label databases of both kinds for tests, and what stands in them to the last column."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from headwater.store.labels import LabelRows, Source, open_labels
from headwater.store.labels.database import LabelDatabase, open_database
from headwater.store.labels.schema import METADATA, class_history, classes, history, labels
from postgres import Postgres

Row = tuple[Any, ...]
NAMES = ("ant", "bee", "cat", "dog")


class Clock:
    """A second later each time it is read."""

    def __init__(self) -> None:
        self._ticks = itertools.count(1_000)

    def __call__(self) -> float:
        return float(next(self._ticks))


KINDS = ("sqlite", "postgresql")


@dataclass(frozen=True)
class Kind:
    """One of the databases that the contract holds for; `make` gives the address of one without a row.

    In PostgreSQL it is always the same one, so a test has one at a time.
    """

    name: str
    make: Callable[[], str]

    def open(self) -> LabelDatabase:
        return open_database(self.make(), clock=Clock())

    def of_a_store(self) -> str | None:
        """The `labels` of a store; None for SQLite, of which a store has a file of its own."""
        return None if self.name == "sqlite" else self.make()


@dataclass(frozen=True)
class Templates:
    """Databases with tables and nothing in them, made by the program itself."""

    sqlite: Path
    postgresql: str
    server: Postgres

    def kind(self, name: str, folder: Path) -> Kind:
        """One of `KINDS`."""
        return self.sqlite_kind(folder) if name == "sqlite" else self.postgresql_kind()

    def sqlite_kind(self, folder: Path) -> Kind:
        """Each a copy in the folder."""
        numbers = itertools.count()
        return Kind("sqlite", lambda: str(shutil.copy(self.sqlite, folder / f"labels{next(numbers)}.db")))

    def postgresql_kind(self) -> Kind:
        """Each the same one, emptied."""
        return Kind("postgresql", self._emptied)

    def _emptied(self) -> str:
        tables = ", ".join(table.name for table in METADATA.sorted_tables)
        self.server.execute(f"TRUNCATE {tables} RESTART IDENTITY", url=self.postgresql)
        return self.postgresql


def make_templates(folder: Path, server: Postgres) -> Templates:
    found = Templates(folder / "template.db", server.make(), server)
    for place in (found.sqlite, found.postgresql):
        open_labels(place).close()
    return found


def digest(number: int) -> str:
    return f"{number:032x}"


def announce(database: LabelDatabase, number: int) -> int:
    """A version with a digest that says its number; the number that orders it."""
    return database.announce(digest(number), name=f"net{number}").number


def human(samples: Any, labels: Any) -> LabelRows:
    return LabelRows.of(samples, labels, source=Source.HUMAN)


def imported(samples: Any, labels: Any) -> LabelRows:
    return LabelRows.of(samples, labels, source=Source.IMPORT)


def predicted(samples: Any, labels: Any, model: int, *, scores: Any = 0.75, margins: Any = 0.5) -> LabelRows:
    return LabelRows.of(samples, labels, source=Source.MODEL, model=model, scores=scores, margins=margins)


def contents(database: LabelDatabase) -> dict[str, list[Row]]:
    """All rows and classes, exactly, but for what only the log of changes would tell."""
    with database._engine.connect() as connection:
        return {
            table.name: sorted(map(tuple, connection.execute(sa.select(table))), key=repr)
            for table in (labels, classes)
        }


def remembered(database: LabelDatabase) -> dict[str, list[Row]]:
    """What the history holds."""
    with database._engine.connect() as connection:
        return {
            table.name: sorted(map(tuple, connection.execute(sa.select(table))), key=repr)
            for table in (history, class_history)
        }


def in_force(database: LabelDatabase, dataset: str = "photos") -> dict[int, tuple[int, str]]:
    """Label and source of each sample."""
    found: dict[int, tuple[int, str]] = {}
    for part in database.scan(dataset):
        triples = zip(part.samples.tolist(), part.labels.tolist(), part.sources.tolist(), strict=True)
        found |= {sample: (label, Source(source).name.lower()) for sample, label, source in triples}
    return found


def in_process(
    place: str,
    work: Callable[[LabelDatabase], object],
    *,
    trap: Callable[[LabelDatabase], None] | None = None,
) -> int:
    """Start the work on a database in a forked child; its process id.

    Nobody may have an SQLite file open while this forks: the library takes the parent's locks for its own.
    `trap` is set in the database before the work.
    """
    child = os.fork()
    if child:
        return child
    try:
        database = open_labels(place)
        if trap is not None:
            trap(database)
        work(database)
        database.close()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def end_of(child: int) -> int:
    """The exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Trap:
    """SIGKILL at the n-th step of what is done to a database; 0 only counts."""

    def __init__(self, number: int = 0) -> None:
        self.steps = 0
        self._number = number

    def __call__(self, database: LabelDatabase) -> None:
        """Set it."""
        raise NotImplementedError

    def step(self, *_: object) -> int:
        self.steps += 1
        if self.steps == self._number:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0


class AtStatement(Trap):
    """A step is the moment before a statement or a commit."""

    def __call__(self, database: LabelDatabase) -> None:
        for event in ("before_cursor_execute", "commit"):
            sa.event.listen(database._engine, event, lambda *_: self.step() and None)


class WithinStatement(Trap):
    """A step is 20 instructions of SQLite's machine, which a statement has many of."""

    def __call__(self, database: LabelDatabase) -> None:
        def watch(connection: Any, _record: object) -> None:
            connection.set_progress_handler(self.step, 20)

        sa.event.listen(database._engine, "connect", watch)
        database._engine.dispose()
