"""Datasets by name. Who changes one locks it first, so writers of one dataset follow one another."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from headwater.errors import LabelError, WrongUse
from headwater.store.labels.schema import datasets
from headwater.store.labels.staging import insert

_LONGEST_NAME = 200
_SHOWN = 5


def names(connection: sa.Connection) -> list[str]:
    """All datasets that have labels."""
    return list(connection.execute(sa.select(datasets.c.name).order_by(datasets.c.name)).scalars())


def find(connection: sa.Connection, name: str) -> int:
    """Its number; raises `LabelError` for a dataset of which nothing is known."""
    number = connection.execute(_number(name)).scalar()
    if number is None:
        known = names(connection)
        shown = ", ".join(map(repr, known[:_SHOWN])) or "none yet"
        raise LabelError(f"no labels are kept of a dataset {name!r}; of {len(known)}, such as {shown}")
    return int(number)


def lock(connection: sa.Connection, name: str, *, create: bool = False) -> int:
    """Its number, while no other transaction writes to it; `create` makes it if need be."""
    number = connection.execute(_number(name).with_for_update()).scalar()
    if number is not None:
        return int(number)
    if not create:
        return find(connection, name)  # which says that it is not there
    check_name(name, "a dataset's name")
    connection.execute(insert(connection, datasets).values(name=name).on_conflict_do_nothing())
    return int(connection.execute(_number(name).with_for_update()).scalar_one())


def check_name(name: str, what: str) -> None:
    """Raises `WrongUse` for text that no terminal or file could show."""
    if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        raise WrongUse(f"{what} is 1 to {_LONGEST_NAME} printable characters, not {name[:_LONGEST_NAME]!r}")


def _number(name: str) -> sa.Select[Any]:
    return sa.select(datasets.c.number).where(datasets.c.name == name)
