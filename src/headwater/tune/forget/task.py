"""What is to be forgotten, and how far that has come: in clear on disk until it is done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headwater.data.forgetting import Plans
from headwater.errors import WrongUse


class Task(msgspec.Struct, frozen=True):
    """One request: `places` are stores, or local data, as `Place.identity` has them; `before` the versions
    that the dataset had, and `after` the one that it will have. `keys` are those of samples that it had,
    `paths` those that were named of others.

    `old` are the versions in force that saw the samples, by name, `new` those that came of the replay, and
    `facts` say how. `sealed` are the digests of all that saw them, with their names; `left` those in force
    that saw them and stay, by name, with what to do about each; `untold` digests of which nobody can tell,
    with their names. `known` are all versions that the survey knew; without `models` none is sealed.
    `begun` says that the samples may be gone in some place. `further` are folders of caches that the user
    has named.
    """

    places: tuple[str, ...]
    ids: tuple[int, ...]
    keys: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: str = ""
    old: dict[str, str] = {}
    new: dict[str, str] = {}
    facts: dict[str, dict[str, Any]] = {}
    sealed: dict[str, str] = {}
    left: dict[str, str] = {}
    untold: dict[str, str] = {}
    known: tuple[str, ...] = ()
    models: bool = True
    begun: bool = False
    delete_files: bool = False
    relabel: bool = True
    method: str = "replay"
    further: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Who forgets in the same places goes on with the same task."""
        return key_of(self.places)

    @property
    def known_paths(self) -> tuple[str, ...]:
        """Of all samples, as far as they are known."""
        return (*self.keys, *self.paths)


def key_of(places: Iterable[str]) -> str:
    """Of places in whatever order."""
    return "\n".join(sorted(places))


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
    """The task that was not done to its end in these places; raises `WrongUse` if it is of other samples, or
    if one is not done that has some of these places, and not all, or others."""
    for task in Plans(folder).all(Task):
        if task.key == key_of(places):
            if not ids or set(task.ids) == set(ids):
                return task
            raise _unended(task, "here", "--resume")
        if not set(task.places).isdisjoint(places):
            there = " ".join(task.places)
            raise _unended(task, f"at {there}", f"`headwater forget {there} --resume`")
    return None


def _unended(task: Task, where: str, remedy: str) -> WrongUse:
    return WrongUse(
        f"{len(task.ids):,} other samples were being forgotten {where} when that was interrupted, or still "
        f"are; finish that with {remedy}, and then forget these"
    )
