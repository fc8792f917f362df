"""Which rows of a dataset are wanted. Loads without SQLAlchemy: a client of a store asks for them too."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.errors import WrongUse
from headwater.store.labels.rows import Source

Range = tuple[float, float]

BEFORE_ALL = -1
"""Where the first page of samples begins: ids are not negative."""


@dataclass(frozen=True)
class LabelQuery:
    """What rows must be like; what is left out holds for all. Ranges include both ends.

    `classes` are names; `model` and `older_than` are versions as `LabelDatabase.model` finds them: only rows
    of that one, and only rows of models that were announced before it.
    """

    classes: tuple[str, ...] = ()
    scores: Range | None = None
    margins: Range | None = None
    sources: tuple[Source, ...] = ()
    model: str | None = None
    older_than: str | None = None

    def __post_init__(self) -> None:
        for name in ("scores", "margins"):
            found = getattr(self, name)
            if found is not None and not found[0] <= found[1]:
                raise WrongUse(f"the range of {name}, {found[0]:g} to {found[1]:g}, holds nothing")


ALL = LabelQuery()
