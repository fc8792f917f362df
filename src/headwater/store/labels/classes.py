"""The class list of a dataset. A class keeps its number for ever; rows refer to numbers.

Merging marks a class and leaves its rows alone, so it costs the same however many there are. A name that a
class once had still means it, so an older model that uses the name does not make the class anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.dialects.postgresql import aggregate_order_by

from headwater.errors import LabelRefused, WrongUse
from headwater.store.labels.datasets import check_name
from headwater.store.labels.schema import class_history, classes, revisions
from headwater.store.labels.staging import insert_texts, is_sqlite

_REMEMBERED = 64


@dataclass(frozen=True, eq=False)
class ClassList:
    """Names by number, and which classes were merged into which (None: into none)."""

    names: tuple[str, ...]
    merged_into: tuple[int | None, ...]
    former: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def roots(self) -> NDArray[np.int32]:
        """The class that each number stands for, after all merges."""
        into = [number if into is None else into for number, into in enumerate(self.merged_into)]
        found = np.array(into, np.int32)
        for _ in range(len(self).bit_length()):
            found = found[found]
        return found

    @property
    def loops(self) -> bool:
        """Whether classes are merged into each other, which no change may bring about."""
        return any(self.merged_into[root] is not None for root in self.roots)

    @property
    def current(self) -> list[str]:
        """The names of the classes that were not merged into another."""
        return [name for name, into in zip(self.names, self.merged_into, strict=True) if into is None]

    def number(self, name: str) -> int:
        """The number that a name stands for; raises `WrongUse` for one that was never given."""
        found = self._numbers.get(name)
        if found is None:
            near = get_close_matches(name, self.current, n=3) or self.current[:3]
            listed = ", ".join(map(repr, near)) or "none yet"
            raise WrongUse(f"no class is called {name!r}; of {len(self.current)}, such as {listed}")
        return found

    def members(self, name: str) -> list[int]:
        """All numbers that stand for the class of this name."""
        return np.flatnonzero(self.roots == self.roots[self.number(name)]).tolist()

    def has(self, name: str) -> bool:
        """Whether the name means a class, now or formerly."""
        return name in self._numbers

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {**self.former, **{name: number for number, name in enumerate(self.names)}}


def load(connection: sa.Connection, dataset: int) -> ClassList:
    """The class list as it stands."""
    query = sa.select(classes.c.name, classes.c.merged_into).where(classes.c.dataset == dataset)
    rows = connection.execute(query.order_by(classes.c.number)).all()
    renamed = (revisions.c.kind == "rename", revisions.c.undone_by.is_(None))
    former = (
        sa.select(class_history.c.name, class_history.c.number)
        .join(revisions, revisions.c.number == class_history.c.replaced)
        .where(class_history.c.dataset == dataset, *renamed)
        .order_by(class_history.c.replaced)
    )
    before = {name: number for name, number in connection.execute(former)}
    return ClassList(tuple(row[0] for row in rows), tuple(row[1] for row in rows), before)


class Lists:
    """Class lists that were seen. One that is the same still is not sent again by a PostgreSQL, which may be
    across a slow link."""

    def __init__(self) -> None:
        self._seen: dict[str, ClassList] = {}

    def load(self, connection: sa.Connection, dataset: int) -> ClassList:
        """The class list as it stands."""
        if is_sqlite(connection):
            return load(connection, dataset)
        digest, renamed = connection.execute(_digest_of(dataset)).one()
        if not renamed and digest in self._seen:
            return self._seen[digest]
        found = load(connection, dataset)
        self.learn(found)
        return found

    def learn(self, found: ClassList) -> None:
        """Remember a list. Of classes that had other names the database is asked anew."""
        if found.former:
            return
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        self._seen[_digest(found)] = found


def count(connection: sa.Connection, dataset: int) -> int:
    """How many classes there are, those that were merged into others among them."""
    query = sa.select(sa.func.count()).select_from(classes).where(classes.c.dataset == dataset)
    return connection.execute(query).scalar_one()


def adopt(
    connection: sa.Connection, dataset: int, names: Sequence[str], *, revision: int
) -> NDArray[np.int32]:
    """The number of each name; classes that are not there yet are added."""
    return add(connection, dataset, load(connection, dataset), names, revision=revision)[0]


def add(
    connection: sa.Connection, dataset: int, there: ClassList, names: Sequence[str], *, revision: int
) -> tuple[NDArray[np.int32], ClassList]:
    """The number of each name, and the class list with those that are not there yet."""
    new = [name for name in dict.fromkeys(names) if not there.has(name)]
    for name in new:
        check_name(name, "a class's name")
    begin = len(there)
    rows = [(dataset, begin + place, name, revision) for place, name in enumerate(new)]
    insert_texts(connection, classes, ("dataset", "number", "name", "revision"), rows)
    became = ClassList((*there.names, *new), (*there.merged_into, *([None] * len(new))), there.former)
    return np.array([became.number(name) for name in names], np.int32), became


def rename(connection: sa.Connection, dataset: int, old: str, new: str, *, revision: int) -> None:
    """Give a class another name; raises `LabelRefused` if another class has it."""
    check_name(new, "a class's name")
    there = load(connection, dataset)
    number = there.number(old)
    if new in there.names:
        raise LabelRefused(f"class {there.names.index(new)} is called {new!r} already; merge {old!r} into it")
    _change(connection, dataset, number, revision=revision, name=new)


def merge(connection: sa.Connection, dataset: int, old: str, into: str, *, revision: int) -> None:
    """From now on the class `old` is `into`."""
    there = load(connection, dataset)
    number, target = (int(there.roots[there.number(name)]) for name in (old, into))
    if number == target:
        raise LabelRefused(f"classes {old!r} and {into!r} are one class already")
    _change(connection, dataset, number, revision=revision, merged_into=target)


def _change(
    connection: sa.Connection, dataset: int, number: int, *, revision: int, **values: str | int
) -> None:
    place = sa.and_(classes.c.dataset == dataset, classes.c.number == number)
    columns = ["dataset", "number", "name", "merged_into", "revision"]
    before = sa.select(sa.literal(revision, sa.BigInteger), *(classes.c[name] for name in columns))
    connection.execute(class_history.insert().from_select(["replaced", *columns], before.where(place)))
    connection.execute(classes.update().where(place).values(revision=revision, **values))


def _digest_of(dataset: int) -> sa.Select[Any]:
    """What `_digest` gives of the list, as PostgreSQL makes it; and how many renames there were."""
    text = sa.func.concat_ws(
        " ", classes.c.number, sa.func.coalesce(classes.c.merged_into, -1), classes.c.name
    )
    lines = sa.func.string_agg(text, aggregate_order_by(sa.literal("\n"), classes.c.number))
    digest = sa.func.encode(sa.func.sha256(sa.func.convert_to(sa.func.coalesce(lines, ""), "UTF8")), "hex")
    renamed = sa.select(sa.func.count()).where(revisions.c.dataset == dataset, revisions.c.kind == "rename")
    return sa.select(digest, renamed.scalar_subquery()).where(classes.c.dataset == dataset)


def _digest(found: ClassList) -> str:
    rows = zip(found.names, found.merged_into, strict=True)
    lines = [f"{number} {-1 if into is None else into} {name}" for number, (name, into) in enumerate(rows)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def rooted(column: sa.ColumnElement[int], there: ClassList) -> sa.ColumnElement[int]:
    """The column with merged classes as what they were merged into."""
    moved = {number: int(root) for number, root in enumerate(there.roots) if number != root}
    return sa.case(moved, value=column, else_=column) if moved else column
