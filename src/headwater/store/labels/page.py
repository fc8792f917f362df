"""A page of labels: rows, and what their numbers mean. Loads without SQLAlchemy, as clients of stores do."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from headwater.store.labels.rows import LabelRows


@dataclass(frozen=True, eq=False)
class Glossary:
    """What the numbers in a dataset's rows mean: classes by number, model versions by theirs."""

    names: tuple[str, ...] = ()
    versions: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Of all names and versions."""
        content = msgspec.msgpack.encode((self.names, sorted(self.versions.items())))
        return hashlib.blake2b(content, digest_size=16).hexdigest()


@dataclass(frozen=True, eq=False)
class LabelPage:
    """Rows in order of id. `next` is where the following page begins, None after the last.

    `opinions` are what models say against rows of the page, if that was asked for. `state` tells a database
    from others, and from what it was before somebody wrote to it; empty where there is none.
    """

    rows: LabelRows
    glossary: Glossary
    next: int | None
    opinions: LabelRows | None = None
    state: str = ""
