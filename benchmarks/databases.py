"""A PostgreSQL at one end of a link: pgserver's binaries, in the network namespace of that end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from netns import Side

PORT = 5432
_START_SECONDS = 60.0
_OPEN_TO_ALL = "\nhost all all 0.0.0.0/0 trust\n"


@dataclass(frozen=True)
class Database:
    """Its URL for who is on the link, and one that needs no network, for this machine."""

    url: str
    here: str


@contextmanager
def postgres_at(side: Side) -> Iterator[Database]:
    """An empty database that listens there, until the block ends. It needs root."""
    # A short path: that of a socket has little room.
    folder = Path(tempfile.mkdtemp(prefix="hw-pg-", dir="/tmp"))
    try:
        words = [*side.words, *_prepare(folder), "-h", side.address, "-p", str(PORT)]
        base = "postgresql+psycopg://postgres@"
        with _running(words, folder):
            yield Database(f"{base}{side.address}:{PORT}/postgres", f"{base}/postgres?host={folder / 'data'}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _prepare(folder: Path) -> Sequence[str]:
    """The command that serves a new cluster, which the package has made and started once."""
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))  # which it reads, and warns of, when it is imported
    import pgserver

    made = pgserver.get_server(folder / "data", cleanup_mode=None)
    pgserver.pg_ctl(["-w", "-m", "fast", "stop"], pgdata=made.pgdata, user=made.system_user)
    with (made.pgdata / "pg_hba.conf").open("a") as rules:
        rules.write(_OPEN_TO_ALL)
    user = ["setpriv", f"--reuid={made.system_user}", f"--regid={made.system_user}", "--clear-groups"]
    binary = Path(pgserver.__file__).parent / "pginstall" / "bin" / "postgres"
    return [*user, str(binary), "-D", str(made.pgdata), "-k", str(made.pgdata)]


@contextmanager
def _running(words: Sequence[str], folder: Path) -> Iterator[None]:
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_until_ready(server, folder)
        yield
    finally:
        server.send_signal(signal.SIGINT)  # it does not wait for clients to leave
        server.wait()


def _wait_until_ready(server: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while "ready to accept connections" not in (said := (folder / "log").read_text(errors="replace")):
        if server.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"PostgreSQL did not start: {said}")
        time.sleep(0.1)
