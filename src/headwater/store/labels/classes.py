"""The class list of a dataset. A class keeps its number for ever; rows refer to numbers.

Merging marks a class and leaves its rows alone, so it costs the same however many there are. A name that a
class once had still means it, so an older model that uses the name does not make the class anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from headwater.errors import LabelRefused, WrongUse
from headwater.store.labels.datasets import check_name
from headwater.store.labels.schema import class_history, classes, revisions


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


def adopt(
    connection: sa.Connection, dataset: int, names: Sequence[str], *, revision: int
) -> NDArray[np.int32]:
    """The number of each name; classes that are not there yet are added."""
    there = load(connection, dataset)
    new = [name for name in dict.fromkeys(names) if not there.has(name)]
    for name in new:
        check_name(name, "a class's name")
    numbers = {name: len(there) + place for place, name in enumerate(new)}
    rows = [
        {"dataset": dataset, "number": number, "name": name, "revision": revision}
        for name, number in numbers.items()
    ]
    if rows:
        connection.execute(classes.insert(), rows)
    return np.array([numbers[name] if name in numbers else there.number(name) for name in names], np.int32)


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


def rooted(column: sa.ColumnElement[int], there: ClassList) -> sa.ColumnElement[int]:
    """The column with merged classes as what they were merged into."""
    moved = {number: int(root) for number, root in enumerate(there.roots) if number != root}
    return sa.case(moved, value=column, else_=column) if moved else column
