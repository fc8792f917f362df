"""A real PostgreSQL for tests: pgserver's binaries, started once, with a new database for whoever asks."""

from __future__ import annotations

import atexit
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest


@dataclass(frozen=True)
class Postgres:
    """A running server; `folder` holds its socket."""

    folder: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://postgres@/{database}?host={self.folder}"

    def make(self) -> str:
        """The URL of a new, empty database. It is a thousand files, so use it for more than one test."""
        name = f"test{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, statement: str, *, url: str | None = None) -> None:
        """In the database of this URL, or in the server's own."""
        address = (url or self.url()).replace("postgresql+psycopg:", "postgresql:")
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def run_postgres() -> Iterator[Postgres]:
    # A short path: that of a socket has little room.
    folder = Path(tempfile.mkdtemp(prefix="hw-pg-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))  # which it reads, and warns of, when it is imported
        import pgserver
    server = pgserver.get_server(folder / "d", cleanup_mode="stop")
    running = Postgres(server.get_postmaster_info().socket_dir)
    try:
        # Its clients are killed in tests, not the server, so nothing need reach the disk.
        running.execute("ALTER SYSTEM SET fsync = off")
        running.execute("SELECT pg_reload_conf()")
        yield running
    finally:
        # Without the checkpoint that its own way of stopping waits for.
        pgserver.pg_ctl(["-m", "immediate", "stop"], pgdata=server.pgdata, user=server.system_user)
        atexit.unregister(server._cleanup)
        shutil.rmtree(folder, ignore_errors=True)
