"""What a database reports, told as our own errors: fact, values, remedy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from headwater.errors import HeadwaterError, LabelError, LabelRefused, Unreachable
from headwater.store.labels import address

_LOCKED = "is locked by another process for longer than was waited; end that process, or wait longer"
_READ_ONLY = "cannot be written; check the permissions of the file and its folder, or of the user"
_FULL = "has no room left, and nothing of this was written; make room on its disk"
_CLOSED = "cannot be opened; check the path, its folder and their permissions"
_DAMAGED = "is damaged, or no label database; name another file, or restore a copy"

_SQLITE = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_CANTOPEN: _CLOSED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
}
_POSTGRESQL = {"55P03": _LOCKED, "25006": _READ_ONLY, "42501": _READ_ONLY, "53100": _FULL}
_AWAY = ("08", "57P", "53300")
"""What the states begin with of a server that is not there, goes down, or takes no more connections."""


@contextmanager
def told(url: sa.URL) -> Iterator[None]:
    """Errors of the driver within the block become errors of this package."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        place = address.name(url)
        if isinstance(error.orig, sqlite3.Error):
            raise _of_sqlite(error.orig, place) from error
        raise _of_postgresql(error.orig, place) from error
    except Exception as error:
        # COPY is psycopg's own, so its errors come past SQLAlchemy; none but psycopg's have a state.
        if not hasattr(error, "sqlstate"):
            raise
        raise _of_postgresql(error, address.name(url)) from error


def _of_sqlite(error: sqlite3.Error, place: str) -> HeadwaterError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return LabelError(f"label database {place} {_SQLITE.get(code, 'failed')} ({error})")


def _of_postgresql(error: BaseException | None, place: str) -> HeadwaterError:
    state = getattr(error, "sqlstate", None)
    reason = " ".join(str(error).split())
    if state is None:
        return _of_a_connection(reason, place)
    if state.startswith(_AWAY):
        return Unreachable(f"label database {place} does not answer ({reason}); check the server")
    return LabelError(f"label database {place} {_POSTGRESQL.get(state, 'failed')} ({reason})")


def _of_a_connection(reason: str, place: str) -> HeadwaterError:
    """One that was never made carries no state, only what the server said."""
    if 'database "' in reason and "does not exist" in reason:
        return LabelError(f"label database {place} does not exist; make it with `createdb`")
    if "authentication failed" in reason or "pg_hba.conf" in reason or 'role "' in reason:
        return LabelRefused(f"label database {place} does not let this user in ({reason})")
    return Unreachable(f"label database {place} does not answer ({reason}); check address and network")
