"""Held samples on disk: drawers below one folder, which go one by one.

    samples-0/key.json           which data they are of
    samples-0/files-0003/        a drawer of files
    samples-0/3f1c...-0004/      a drawer of images, named after what made them

A process has a folder `samples-N` for itself, by a lock; what another dataset, or another pipeline, has left
in it is discarded.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.data.atomic import replacing
from headwater.engine.drawer import RECORD, Drawer
from headwater.errors import HeadwaterError

log = logging.getLogger("headwater")

FILES = "files"
"""The kind of what is held as the file that it is."""
_KEY, _LOCK = "key.json", "lock"
_DRAWERS = 64  # that the bytes are divided into: each has two open files
_DRAWER = re.compile(r"([0-9a-z]+)-(\d+)")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Key(msgspec.Struct, frozen=True):
    dataset: str
    format: int = 1


class Disk:
    """Entries by sample id, in `most_bytes` at most. Safe to use from many threads.

    A disk that is full, or fails, takes nothing more from then on; that is said once.
    """

    def __init__(self, folder: Path, *, most_bytes: int, dataset: str, kinds: Sequence[str]) -> None:
        """`dataset` is its version; `kinds` are those of drawers that may be read."""
        self.most_bytes, self.stopped = most_bytes, False
        self._lock = threading.Lock()
        self._drawers: dict[int, Drawer] = {}
        self._open: dict[str, int] = {}  # the drawer of each kind that is written to
        self._names: dict[int, str] = {}
        self._next = 0  # number, of which none comes twice
        self._closing: weakref.finalize[..., Disk] | None = None
        try:
            self.folder, descriptor = _claim(folder, _Key(dataset))
            self._closing = weakref.finalize(self, os.close, descriptor)
            self._find(kinds)
        except OSError as error:
            if error.errno not in _FULL:
                raise HeadwaterError(
                    f"cannot hold samples in {folder}: {error.strerror}; give the cache another folder"
                ) from error
            self._stop(error.strerror)

    def close(self) -> None:
        """Let another process have the folder."""
        self.stopped = True
        if self._closing is not None:
            self._closing()

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(drawer.nbytes for drawer in list(self._drawers.values()))

    @property
    def room(self) -> int:
        """Bytes that may be added; what one drawer takes is left free, for moving."""
        return 0 if self.stopped else max(0, self.most_bytes - self._drawer_bytes - self.nbytes)

    def __contains__(self, number: int) -> bool:
        return number in self._drawers

    def drawer(self, number: int) -> Drawer:
        return self._drawers[number]

    def drawers(self) -> list[tuple[int, Drawer]]:
        return sorted(self._drawers.items())

    def add(
        self,
        kind: str,
        ids: NDArray[np.int64],
        sizes: NDArray[np.int64],
        entries: Sequence[bytes],
        *,
        moving: bool = False,
    ) -> tuple[int, NDArray[np.int64]] | None:
        """Where they lie: the drawer, and a row for each; None where there is no room for all.

        What is `moving` from a drawer that goes may take the room that is left free.
        """
        size = sum(map(len, entries)) + len(entries) * RECORD.itemsize
        with self._lock:
            if self.stopped or size > self.room + moving * self._drawer_bytes:
                return None
            try:
                number = self._writable(kind, ids)
            except OSError as error:
                self._stop(error.strerror)
                return None
            drawer = self._drawers[number]
            if not drawer.add(ids, sizes, entries=entries, norms=np.zeros(len(ids), np.float32)):
                self._stop("the disk is full")
                return None
        return number, drawer.find(ids)

    def seal(self, number: int) -> None:
        """Write no more to it."""
        with self._lock:
            self._open = {kind: open for kind, open in self._open.items() if open != number}

    def drop(self, number: int) -> Path:
        """Forget a drawer that is sealed; its folder is to be removed. Whoever reads from it may go on."""
        del self._drawers[number]
        return self.folder / self._names.pop(number)

    def kind_of(self, number: int) -> str:
        return self._names[number].rpartition("-")[0]

    @property
    def _drawer_bytes(self) -> int:
        return self.most_bytes // _DRAWERS

    def _writable(self, kind: str, ids: NDArray[np.int64]) -> int:
        """A drawer that is not full, and has none of these: a drawer never writes a sample again."""
        number = self._open.get(kind)
        if number is not None:
            drawer = self._drawers[number]
            if drawer.nbytes < self._drawer_bytes and (drawer.find(ids) < 0).all():
                return number
        number, self._next = self._next, self._next + 1
        name = f"{kind}-{number:04d}"
        (self.folder / name).mkdir(mode=0o700)
        self._drawers[number], self._names[number] = Drawer(self.folder / name), name
        self._open[kind] = number
        return number

    def _find(self, kinds: Sequence[str]) -> None:
        """The drawers that an earlier process left; those of other kinds go, and those that do not fit."""
        for number, kind, place in _left(self.folder):
            drawer = Drawer(place) if kind in kinds else None
            if drawer is None or self.nbytes + drawer.nbytes > self.most_bytes:
                shutil.rmtree(place, ignore_errors=True)
                continue
            self._drawers[number], self._names[number] = drawer, place.name
            self._open[kind] = number
            self._next = number + 1

    def _stop(self, reason: str | None) -> None:
        if not self.stopped:
            self.stopped = True
            log.warning("the cache on disk takes no more samples, and training goes on: %s", reason)


def _claim(folder: Path, key: _Key) -> tuple[Path, int]:
    """A folder that no other process uses, with nothing in it that is of other data, and its lock.

    One that holds samples of the dataset comes first.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    spare: tuple[Path, int] | None = None
    number = 0
    while spare is None or (folder / f"samples-{number}").exists():
        place = folder / f"samples-{number}"
        place.mkdir(mode=0o700, exist_ok=True)
        descriptor, number = _lock(place), number + 1
        if descriptor is None:
            continue
        if _key_of(place) == key:
            if spare is not None:
                os.close(spare[1])
            return place, descriptor
        if spare is None:
            spare = place, descriptor
        else:
            os.close(descriptor)
    _clear(spare[0], key)
    return spare


def _lock(place: Path) -> int | None:
    descriptor = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _key_of(place: Path) -> _Key | None:
    try:
        return msgspec.json.decode((place / _KEY).read_bytes(), type=_Key)
    except (OSError, msgspec.MsgspecError):
        return None


def _clear(place: Path, key: _Key) -> None:
    found = list(_left(place))
    if found:
        log.info("%d drawers of samples of other data in %s are discarded", len(found), place)
    for _, _, drawer in found:
        shutil.rmtree(drawer, ignore_errors=True)
    with replacing(place / _KEY) as file:
        file.write(msgspec.json.encode(key))


def _left(place: Path) -> Iterator[tuple[int, str, Path]]:
    """Numbers, kinds and folders of the drawers in a folder, in order."""
    found = ((_DRAWER.fullmatch(path.name), path) for path in place.iterdir())
    yield from sorted((int(match[2]), match[1], path) for match, path in found if match)
