"""Where a label database lies, and how connections to it behave."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from headwater.errors import LabelError, MissingExtra, WrongUse
from headwater.store.labels import AT_A_STORE
from headwater.store.labels.staging import forget

_DRIVERS = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_FORMS = "name a file, sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"
_CACHE_KIB = 64 << 10
_STAGE_KIB = 16 << 10
_LOG_BYTES = 64 << 20
_CONNECT_SECONDS = 10
_RETRY_SECONDS = 0.02


def parse(address: str | os.PathLike[str]) -> sa.URL:
    """The URL of a database, or of the SQLite file with this name; raises `WrongUse`."""
    text = os.fspath(address)
    if "://" not in text:
        if not text:
            raise WrongUse(f"the address of the label database is empty; {_FORMS}")
        return sa.URL.create("sqlite", database=str(Path(text).expanduser().absolute()))
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise WrongUse(f"the address of the label database cannot be read; {_FORMS}") from None
    if url.drivername.startswith("grpc"):
        raise WrongUse(f"{url.drivername}:// is the address of a store, not of labels; {AT_A_STORE}")
    if url.drivername not in _DRIVERS:
        raise WrongUse(f"no label database is kept in {url.drivername!r}; {_FORMS}")
    if url.drivername.startswith("sqlite") and not _names_a_file(url):
        raise WrongUse(f"a label database outlives the process, so it is a file; {_FORMS}")
    return url.set(drivername=_DRIVERS[url.drivername])


def name(url: sa.URL) -> str:
    """What to call the database in messages: never with its password."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.set(query={}).render_as_string(hide_password=True)


def require_file(url: sa.URL) -> None:
    """Raises `LabelError` where SQLite would make a new file."""
    path = url.database or ""
    if url.get_backend_name() == "sqlite" and not path.startswith("file:") and not Path(path).exists():
        raise LabelError(f"there is no label database {path}; check the name, or write a label to make it")


def make_engine(url: sa.URL, wait_seconds: float) -> sa.Engine:
    """An engine that waits for other writers as long as that. It does not connect."""
    make = _sqlite if url.get_backend_name() == "sqlite" else _postgresql
    try:
        engine = make(url, wait_seconds)
    except ImportError as error:
        raise MissingExtra(
            f"labels in PostgreSQL need {error.name}; pip install 'headwater[labels]'"
        ) from error
    sa.event.listen(engine, "rollback", forget)
    return engine


def for_reading(engine: sa.Engine) -> sa.Engine:
    """Whose transactions see the database as it was when they began."""
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="REPEATABLE READ")


def for_writing(engine: sa.Engine) -> sa.Engine:
    """Whose transactions may write."""
    return engine.execution_options(writes=True)


def _names_a_file(url: sa.URL) -> bool:
    return bool(url.database) and ":memory:" not in (url.database or "") and url.query.get("mode") != "memory"


def _sqlite(url: sa.URL, wait_seconds: float) -> sa.Engine:
    engine = sa.create_engine(url, connect_args={"timeout": wait_seconds})

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver begins no transaction of its own
        _use_write_ahead_log(connection, wait_seconds)
        # What is acknowledged is on disk, not only with the operating system.
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        # What a large write leaves in the log is cut off again, also while the process goes on.
        connection.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
        # To compare two versions all rows are sorted: what does not fit goes to a file. What is staged fits.
        connection.execute("PRAGMA temp_store=FILE")
        connection.execute(f"PRAGMA temp.cache_size=-{_STAGE_KIB}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # With the one write lock from the beginning, none fails half way because another was faster.
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _use_write_ahead_log(connection: sqlite3.Connection, wait_seconds: float) -> None:
    """SQLite does not wait for the lock here, so this does: two processes may make the file at once."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)


def _postgresql(url: sa.URL, wait_seconds: float) -> sa.Engine:
    # A statement is sent once to each connection, and by its name from then on.
    settings: dict[str, Any] = {"prepare_threshold": 0}
    if "connect_timeout" not in url.query:
        settings["connect_timeout"] = _CONNECT_SECONDS
    engine = sa.create_engine(url, connect_args=settings, pool_pre_ping=True)

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        connection.execute(f"SET lock_timeout = {round(1000 * wait_seconds)}")
        connection.execute("SET client_min_messages = warning")  # not that a temporary table is there already
        connection.commit()

    return engine
