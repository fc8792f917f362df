"""Model versions that a database was told of, in the order in which it was told.

A version's number is the revision that announced it, so a newer version has a greater number, and a statement
can compare two rows without looking anything up. A parent that comes later than its child could not be put
before it any more: so it gets its number with the child.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import sqlalchemy as sa

from headwater.errors import LabelRefused, WrongUse
from headwater.store.labels import revisions
from headwater.store.labels.datasets import check_name
from headwater.store.labels.revisions import Deed
from headwater.store.labels.schema import models
from headwater.store.labels.staging import count_of, insert

_DIGEST = re.compile(r"[0-9a-f]{8,64}")


class Version(Protocol):
    """What is told of a version, by a registry or by another database."""

    @property
    def digest(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def parent(self) -> str | None: ...


@dataclass(frozen=True)
class Announced:
    """A version that may label; `number` orders it among the others.

    One that is known only as another's parent has no name until it is announced itself.
    """

    number: int
    digest: str
    name: str
    parent: str | None


def announce(
    connection: sa.Connection, digest: str, *, name: str, parent: str | None, author: str, now: int
) -> Announced:
    """Tell the database of a version; the same one again changes nothing.

    A parent that it was not told of is older all the same.
    """
    check_name(name, "a model's name")
    if parent is not None and not known(connection, models.c.digest == digest):
        of = f"{parent}, the parent of {name} {digest}"
        _put(connection, Announced(0, parent, "", None), Deed("announce", author=author, note=of), now=now)
    deed = Deed("announce", author=author, note=f"{name} {digest}")
    return _put(connection, Announced(0, digest, name, parent), deed, now=now)


def _put(connection: sa.Connection, version: Announced, deed: Deed, *, now: int) -> Announced:
    """The version as it is known now; it gets a number if it had none, and a name if that was not known."""
    if not _DIGEST.fullmatch(version.digest):
        raise WrongUse(
            f"{version.digest!r} is no digest of a model version; it is 8 to 64 hexadecimal digits"
        )
    same = models.c.digest == version.digest
    found = known(connection, same)
    if not found:
        number = revisions.add(connection, None, deed, now=now)
        row = {"announced": number, "digest": version.digest, "name": version.name, "parent": version.parent}
        if count_of(connection, insert(connection, models).values(row).on_conflict_do_nothing()):
            return replace(version, number=number)
        # Another process was faster: its number counts, and this revision announces nothing.
        found = known(connection, same)
    if found[0].name or not version.name:
        return found[0]
    named = {"name": version.name, "parent": version.parent}
    connection.execute(models.update().where(same, models.c.name == "").values(named))
    return known(connection, same)[0]


def announce_all(
    connection: sa.Connection, versions: Iterable[Announced], *, author: str, now: int
) -> list[Announced]:
    """Tell the database of another one's versions, oldest first.

    Raises `LabelRefused` where they have another order here: an older version would replace a newer one's
    labels.
    """
    found: list[Announced] = []
    for version in versions:
        deed = Deed("announce", author=author, note=f"{version.name} {version.digest}".strip())
        here = _put(connection, version, deed, now=now)
        if found and here.number < found[-1].number:
            raise LabelRefused(
                f"version {version.name} {version.digest[:12]} was announced here before "
                f"{found[-1].name} {found[-1].digest[:12]}, and there after it; import into a database that "
                "knows none of them"
            )
        found.append(here)
    return found


def known(connection: sa.Connection, condition: sa.ColumnElement[bool] | None = None) -> list[Announced]:
    """All versions, or those for which this holds, oldest first."""
    columns = (models.c.announced, models.c.digest, models.c.name, models.c.parent)
    query = sa.select(*columns).order_by(models.c.announced)
    rows = connection.execute(query if condition is None else query.where(condition))
    return [Announced(*row) for row in rows]


def find(connection: sa.Connection, text: str) -> Announced:
    """By digest, by its first 8 or more digits, or by name (the newest of that name)."""
    versions = known(connection)
    begun = [version for version in versions if len(text) >= 8 and version.digest.startswith(text)]
    exact = [version for version in begun if version.digest == text]
    found = exact or begun or [version for version in versions if text and version.name == text][-1:]
    if len(found) != 1:
        reason = "begins several digests" if found else "is not known to this database"
        listed = ", ".join(f"{v.name} {v.digest[:12]}" for v in versions[-5:]) or "none"
        raise LabelRefused(f"model version {text!r} {reason}; announced last: {listed}")
    return found[0]


def numbers(connection: sa.Connection, digests: Iterable[str]) -> Mapping[str, int]:
    """The number of each; raises `LabelRefused` naming the first that was never announced."""
    wanted = sorted(set(digests))
    found = {version.digest: version.number for version in known(connection, models.c.digest.in_(wanted))}
    for digest in wanted:
        if digest not in found:
            raise LabelRefused(unknown(digest))
    return found


def require(connection: sa.Connection, wanted: Iterable[int]) -> None:
    """Raises `LabelRefused` for a number that is no version's."""
    numbers = sorted(set(wanted))
    versions = {version.number for version in known(connection, models.c.announced.in_(numbers))}
    for number in sorted(set(numbers) - versions):
        raise LabelRefused(unknown(f"number {number}"))


def unknown(digest: str) -> str:
    return f"this database was not told of model version {digest}, so it cannot label; announce it first"
