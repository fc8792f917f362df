"""Who forgets is alone: with the lists of forgotten samples, and with the registry of models.

From the survey to the end, because all that is done follows from what the survey saw. A lock is a file that
is locked by its descriptor, so it goes with the process, however that ends. On file systems of this machine
only.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from headwater.errors import DatasetError

PATIENCE_SECONDS = 20.0
_LOCK = "forgetting.lock"
_PAUSE_SECONDS = 0.05


class Occupant(msgspec.Struct, frozen=True):
    """Who is at it, since when, and where the data are."""

    pid: int = 0
    since: str = ""
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.pid:
            return "another process"
        return f"process {self.pid}, at {', '.join(self.places)} since {self.since}"


@contextmanager
def alone(
    folders: Iterable[Path],
    places: Sequence[str],
    *,
    spare: Iterable[Path] = (),
    patience_seconds: float = PATIENCE_SECONDS,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[None]:
    """The folders are this caller's, to forget samples of `places`, until the block ends.

    Those to `spare` are locked, too, if they can be: in a folder that may not be written to nothing changes.
    Raises `DatasetError` where another keeps one of them for longer than the patience, or where a folder
    cannot be locked.
    """
    end = time.monotonic() + patience_seconds
    with ExitStack() as held:
        for folder in _in_order([*folders, *(folder for folder in spare if _can_be_locked(folder))]):
            held.enter_context(_held(folder, places, end, tell))
        yield


def _can_be_locked(folder: Path) -> bool:
    try:
        os.close(os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError:
        return False
    return True


def _in_order(folders: Iterable[Path]) -> list[Path]:
    """Each once, whatever it is called, and for all processes in one order: so no two wait for each other."""
    found = {}
    for folder in folders:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = folder.stat()
        except OSError as error:
            raise _unusable(folder, error) from error
        found[facts.st_dev, facts.st_ino] = folder
    return [found[key] for key in sorted(found)]


@contextmanager
def _held(folder: Path, places: Sequence[str], end: float, tell: Callable[[str], None]) -> Iterator[None]:
    path = folder / _LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        _wait_for(lock, path, end, tell)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        _write(lock, msgspec.json.encode(Occupant(os.getpid(), now, tuple(places))))
        yield
        _write(lock, b"")
    finally:
        os.close(lock)


def _wait_for(lock: int, path: Path, end: float, tell: Callable[[str], None]) -> None:
    told = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise DatasetError(
                    f"{_occupant(path)} is forgetting samples with {path.parent}; nothing was changed: wait "
                    "until that has ended, or end it, and say the same again"
                ) from None
        except OSError as error:
            raise _unusable(path.parent, error) from error
        if not told:
            tell(f"waiting: {_occupant(path)} is forgetting samples")
            told = True
        time.sleep(_PAUSE_SECONDS)


def _occupant(path: Path) -> Occupant:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Occupant)
    except (OSError, msgspec.MsgspecError):  # it has only just come, or gone
        return Occupant()


def _write(lock: int, text: bytes) -> None:
    """For others to read; who cannot write it, because the disk is full, holds the lock all the same."""
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, text, 0)
    except OSError:
        return


def _unusable(folder: Path, error: OSError) -> DatasetError:
    return DatasetError(
        f"{folder} cannot be locked, so nothing is forgotten: {error.strerror or error}; make it a folder of "
        "this machine that may be written to; for a registry, --no-model leaves all models as they are"
    )
