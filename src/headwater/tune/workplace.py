"""The folder of a fine-tuning that is under way: what it takes to go on after a kill, and a lock."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headwater.data.atomic import replacing
from headwater.data.indexcache import cache_folder
from headwater.errors import ModelError
from headwater.plan.finetune import FinetunePlan


@dataclass(frozen=True)
class Workplace:
    """Features, the state of training and the plan of one fine-tuning, in a folder of the user's cache."""

    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "training.state"

    def load_plan(self) -> FinetunePlan | None:
        """How the fine-tuning was begun; None if it was not."""
        try:
            return msgspec.json.decode(self._plan.read_bytes(), type=FinetunePlan)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def keep_plan(self, plan: FinetunePlan) -> None:
        """Whoever goes on keeps to it, whatever would be measured then."""
        with replacing(self._plan) as file:
            file.write(msgspec.json.encode(plan))

    def clear(self) -> None:
        """Take all of it away, at once: it is done."""
        gone = self.folder.with_name(f"{self.folder.name}.done")
        shutil.rmtree(gone, ignore_errors=True)
        self.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    @property
    def _plan(self) -> Path:
        return self.folder / "plan.json"


def workplace(key: str) -> Workplace:
    """Where the fine-tuning of this key is, or would be."""
    return Workplace(cache_folder() / "finetune" / key)


@contextmanager
def working(key: str) -> Iterator[Workplace]:
    """The workplace, made if need be; raises `ModelError` if another process is at it, or it cannot be."""
    place = workplace(key)
    folder = place.folder
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ModelError(f"cannot work in {folder}: {error.strerror}; set HEADWATER_CACHE") from error
    try:
        _take(lock, folder)
        yield place
    finally:
        os.close(lock)


def _take(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ModelError(
            f"another process is at this fine-tuning, in {folder}; wait for it, or end it and go on"
        ) from None
