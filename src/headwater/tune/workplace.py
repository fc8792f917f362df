"""The folder of a fine-tuning that is under way: what it takes to go on after a kill, and a lock."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from headwater.data.atomic import replacing
from headwater.data.indexcache import cache_folder
from headwater.errors import ModelError
from headwater.plan.finetune import FinetunePlan
from headwater.tune.outcome import Finetuned

log = logging.getLogger("headwater")

IDLE_DAYS = 30
"""After so long, one that nobody went on with is removed when another begins."""

_DAY_SECONDS = 86_400
_DATA = "data.json"
T = TypeVar("T")


@dataclass(frozen=True)
class Workplace:
    """Features, the state of training and the plan of one fine-tuning, in a folder of the user's cache."""

    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "training.state"

    @property
    def journal(self) -> Path:
        return self.folder / "training.journal"

    def keep_data(self, version: str) -> None:
        """Of which version of a dataset its features are."""
        _keep(self.folder / _DATA, version)

    def load_data(self) -> str | None:
        return _load(self.folder / _DATA, str)

    def load_plan(self) -> FinetunePlan | None:
        """How the fine-tuning was begun; None if it was not."""
        return _load(self._plan, FinetunePlan)

    def keep_plan(self, plan: FinetunePlan) -> None:
        """Whoever goes on keeps to it, whatever would be measured then."""
        _keep(self._plan, plan)

    def load_outcome(self) -> Finetuned | None:
        """What came of the fine-tuning: its version is in the registry, and may not be where it is to be."""
        return _load(self._outcome, Finetuned)

    def keep_outcome(self, done: Finetuned) -> None:
        """Whoever goes on has nothing left to do but to bring the version to where it is to be."""
        _keep(self._outcome, done)

    def drop_features(self) -> None:
        """Take away what only training needs, which is nearly all of it."""
        for path in (*self.folder.glob("features.*"), self.state, self.journal):
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Take all of it away, at once: it is done."""
        gone = self.folder.with_name(f"{self.folder.name}.done")
        shutil.rmtree(gone, ignore_errors=True)
        self.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    @property
    def _plan(self) -> Path:
        return self.folder / "plan.json"

    @property
    def _outcome(self) -> Path:
        return self.folder / "outcome.json"


def workplace(key: str) -> Workplace:
    """Where the fine-tuning of this key is, or would be."""
    return Workplace(cache_folder() / "finetune" / key)


def drop_workplaces(versions: Collection[str]) -> int:
    """Remove fine-tunings that are under way over data of one of these versions; how many.

    Raises `ModelError` where a process is at one.
    """
    folder = cache_folder() / "finetune"
    for left in folder.glob("*.done"):  # of a process that was killed while it removed one
        shutil.rmtree(left, ignore_errors=True)
    found = [Workplace(place) for place in sorted(folder.iterdir())] if folder.is_dir() else []
    gone = [place for place in found if place.load_data() in versions]
    for place in gone:
        lock = _enter(place.folder)
        try:
            place.clear()
        finally:
            os.close(lock)
    return len(gone)


@contextmanager
def working(key: str) -> Iterator[Workplace]:
    """The workplace, made if need be; raises `ModelError` if another process is at it, or it cannot be.

    Others that nobody went on with for `IDLE_DAYS` are removed.
    """
    place = workplace(key)
    lock = _enter(place.folder)
    try:
        _drop_idle(place.folder)
        yield place
    finally:
        os.close(lock)


def _enter(folder: Path) -> int:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _lock(folder)
    except BlockingIOError:
        raise ModelError(
            f"another process is at this fine-tuning, in {folder}; wait for it, or end it and go on"
        ) from None
    except OSError as error:
        raise ModelError(f"cannot work in {folder}: {error.strerror}; set HEADWATER_CACHE") from error


def _lock(folder: Path) -> int:
    """An open file that keeps others out; raises `BlockingIOError` where another process has it."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _drop_idle(but: Path) -> None:
    """A changed flag makes another fine-tuning, so one that was given up would lie there for ever."""
    for folder in but.parent.iterdir():
        if folder == but:
            continue
        try:
            if time.time() - _last_change(folder) > IDLE_DAYS * _DAY_SECONDS:
                _drop(folder)
        except OSError as error:  # somebody is at it, or was quicker
            log.info("%s is left as it is: %s", folder, error)


def _last_change(folder: Path) -> float:
    return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))


def _drop(folder: Path) -> None:
    lock = _lock(folder)
    try:
        Workplace(folder).clear()
    finally:
        os.close(lock)
    log.warning("removed %s: nobody went on with that fine-tuning for %d days", folder, IDLE_DAYS)


def _load(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _keep(path: Path, value: object) -> None:
    with replacing(path) as file:
        file.write(msgspec.json.encode(value))
