"""Brings a database to the tables of this program when it is opened; one process at a time."""

from __future__ import annotations

import sqlalchemy as sa

from headwater.errors import Incompatible, LabelError, MissingExtra
from headwater.store.labels import address
from headwater.store.labels.schema import METADATA, VERSION_TABLE

VERSIONS = ("0001",)
"""The steps in `migrations/versions`, oldest first; here too, so that alembic loads only where it must."""

_LOCK = 0x6865616477617465
"""The number of the lock in PostgreSQL that is held while tables are made: `headwate` in ASCII."""


def bring_up(engine: sa.Engine, *, create: bool) -> None:
    """Make or alter the tables if need be.

    Raises `Incompatible` for a database that a newer program has made, and `LabelError` for one that holds
    something else, or nothing where `create` is false.
    """
    if _is_current(engine, create=create):
        return
    with address.for_writing(engine).begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK})
        _upgrade(connection)


def _is_current(engine: sa.Engine, *, create: bool) -> bool:
    with address.for_reading(engine).connect() as connection:
        found = _version(connection)
        if found is None:
            _check_empty(connection, create=create)
    if found is not None and found not in VERSIONS:
        raise Incompatible(
            f"label database {address.name(engine.url)} has tables of version {found}, "
            f"this program knows up to {VERSIONS[-1]}; upgrade headwater"
        )
    return found == VERSIONS[-1]


def _version(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if found is None else str(found)


def _check_empty(connection: sa.Connection, *, create: bool) -> None:
    """A SQLite file of something else is left alone; PostgreSQL may hold others' tables beside ours."""
    place = address.name(connection.engine.url)
    there = set(sa.inspect(connection).get_table_names())
    taken = there if connection.dialect.name == "sqlite" else there & set(METADATA.tables)
    if taken:
        raise LabelError(f"{place} holds tables of something else, such as {min(taken)!r}; name another")
    if not create:
        raise LabelError(f"label database {place} holds nothing yet; write a label to begin")


def _upgrade(connection: sa.Connection) -> None:
    try:
        from alembic import command
        from alembic.config import Config
    except ImportError as error:
        raise MissingExtra(f"labels need {error.name}; pip install 'headwater[labels]'") from error
    config = Config()
    config.set_main_option("script_location", "headwater.store.labels:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
