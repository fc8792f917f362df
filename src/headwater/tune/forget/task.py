"""What is to be forgotten, and how far that has come: in clear on disk until it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headwater.data.forgetting import Plans
from headwater.errors import WrongUse


class Task(msgspec.Struct, frozen=True):
    """One request: `places` are stores, or local data; `before` the versions that the dataset had.

    `old` are the versions in force that saw the samples, by name, `new` those that came of the replay, and
    `facts` say how. `sealed` are the digests of all that saw them, with their names; `left` those in force
    that saw them and stay, by name, with what to do about each; `untold` digests of which nobody can tell,
    with their names. `known` are all versions that the survey knew; without `models` none is sealed.
    `further` are folders of caches that the user has named.
    """

    places: tuple[str, ...]
    ids: tuple[int, ...]
    keys: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    old: dict[str, str] = {}
    new: dict[str, str] = {}
    facts: dict[str, dict[str, Any]] = {}
    sealed: dict[str, str] = {}
    left: dict[str, str] = {}
    untold: dict[str, str] = {}
    known: tuple[str, ...] = ()
    models: bool = True
    delete_files: bool = False
    relabel: bool = True
    method: str = "replay"
    further: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Who forgets in the same places goes on with the same task."""
        return "\n".join(sorted(self.places))


@dataclass
class Desk:
    """The task under way, on disk."""

    folder: Path
    task: Task
    plans: Plans = field(init=False)

    def __post_init__(self) -> None:
        self.plans = Plans(self.folder)

    def save(self, **changes: Any) -> Task:
        """On disk when this returns."""
        self.task = msgspec.structs.replace(self.task, **changes)
        self.plans.keep(self.task.key, self.task)
        return self.task

    def end(self) -> None:
        self.plans.drop(self.task.key)


def find_task(folder: Path, places: Sequence[str], ids: Sequence[int]) -> Task | None:
    """The task that was not done to its end in these places; raises `WrongUse` if it is of other samples."""
    key = Task(tuple(places), ()).key
    found = Plans(folder).load(key, Task)
    if found is None or not ids or set(found.ids) == set(ids):
        return found
    raise WrongUse(
        f"{len(found.ids):,} other samples were being forgotten here when that was interrupted, or still "
        "are; finish that with --resume, and then forget these"
    )
