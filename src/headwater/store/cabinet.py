"""Drawers within a number of bytes: the one that was used least recently goes first, as a whole.

Variants go before what models themselves ask for: anybody who may read can ask for any number of them.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.data.atomic import replacing
from headwater.data.index import Index
from headwater.engine.drawer import DATA, INDEX, RECORD, Drawer, Entry
from headwater.engine.places import Ids
from headwater.errors import HeadwaterError
from headwater.models.version import canonical, digest_of

log = logging.getLogger("headwater")

_KEY = "key.json"
_NOTED_SECONDS = 60.0
MOST_DRAWERS = 128
"""Each has two open files, and a folder."""


class Key(msgspec.Struct, frozen=True):
    """What a drawer holds: of which dataset, and how it was made.

    `made` is the digest of what made it (of trunk and steps, or of steps and codec), `variant` the seed and
    epoch of the draws.
    """

    kind: str
    dataset: str
    made: str
    variant: str = ""

    @property
    def folder(self) -> str:
        return digest_of(canonical(self))


@dataclass
class _Held:
    """A drawer of the cabinet; `drawer` is None until somebody opens it.

    `coming` are bytes that somebody is about to add; `full` says that some found no room, which is told once.
    """

    key: Key
    nbytes: int
    used: float
    drawer: Drawer | None = None
    coming: int = 0
    full: bool = False


class Cabinet:
    """All drawers below one folder, `most_bytes` together. Safe to use from many threads of one process."""

    def __init__(self, folder: Path, *, most_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self.most_bytes = most_bytes
        self._folder, self._clock = folder, clock
        self._lock = threading.RLock()
        self._held: dict[Key, _Held] = {held.key: held for held in _found(folder)}
        self._shrink(0)

    @property
    def nbytes(self) -> int:
        """Bytes of all drawers, with what is about to be added."""
        with self._lock:
            return sum(held.nbytes + held.coming for held in self._held.values())

    def open(self, key: Key, index: Index) -> Loan:
        """The drawer of this key, for the samples of this index as they are now."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                self._shrink(0, drawers=1)
                held = self._held[key] = self._make(key)
            if held.drawer is None:
                held.drawer = Drawer(self._folder / key.folder, clock=self._clock)
                held.drawer.hold(index.ids, index.sizes)
                held.nbytes = held.drawer.nbytes
            self._note(held)
            return Loan(self, key, held.drawer)

    @contextmanager
    def room(self, key: Key, drawer: Drawer, size: int) -> Iterator[bool]:
        """Whether so many bytes more fit into a drawer, after others have gone for it.

        They are free until the block ends. What would not fit if it were alone sends nobody away.
        """
        held = self._reserve(key, drawer, size)
        try:
            yield held is not None
        finally:
            if held is not None:
                self._settle(held, drawer, size)

    def _reserve(self, key: Key, drawer: Drawer, size: int) -> _Held | None:
        with self._lock:
            held = self._held.get(key)
            if held is None or held.drawer is not drawer:
                return None  # one that was dropped meanwhile takes nothing more
            if held.nbytes + held.coming + size > self.most_bytes:
                self._tell(held)
                return None
            self._shrink(size, but=key)
            held.coming += size
            return held

    def _settle(self, held: _Held, drawer: Drawer, size: int) -> None:
        """What was about to be added is there, or not."""
        with self._lock:
            held.coming -= size
            held.nbytes = drawer.nbytes
            if self._held.get(held.key) is held:
                self._note(held)

    def _tell(self, held: _Held) -> None:
        if not held.full:
            held.full = True
            what = held.key.kind, held.key.dataset, self.most_bytes
            log.warning("%s of %s fill the %d bytes that there are; no more of them are kept", *what)

    def _shrink(self, size: int, *, drawers: int = 0, but: Key | None = None) -> None:
        """Drop others until so many bytes and drawers more fit."""
        others = [held for held in self._held.values() if held.key != but]
        for held in sorted(others, key=lambda held: (not held.key.variant, held.used)):
            if self.nbytes + size <= self.most_bytes and len(self._held) + drawers <= MOST_DRAWERS:
                break
            self._drop(held)

    def erase(self, dataset: str, ids: Ids) -> int:
        """Write over what is kept of these samples of a dataset, on disk when this returns; how many entries.

        A drawer that is open takes none of them again.
        """
        with self._lock:
            found = 0
            for held in self._held.values():
                if held.key.dataset != dataset:
                    continue
                if held.drawer is not None:
                    found += held.drawer.erase(ids)
                    continue
                drawer = Drawer(
                    self._folder / held.key.folder, clock=self._clock
                )  # which cuts off a torn end
                found += drawer.erase(ids)
                drawer.close()
            return found

    def close(self) -> None:
        with self._lock:
            for held in self._held.values():
                if held.drawer is not None:
                    held.drawer.close()
            self._held.clear()

    def _make(self, key: Key) -> _Held:
        folder = self._folder / key.folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(folder / _KEY) as file:
                file.write(msgspec.json.encode(key))
        except OSError as error:
            raise HeadwaterError(f"cannot make {folder}: {error.strerror}; check --state") from error
        return _Held(key, 0, self._clock())

    def _note(self, held: _Held) -> None:
        """Remember when it was used, in the file's time too, for the next start."""
        now = self._clock()
        if abs(now - held.used) >= _NOTED_SECONDS:
            try:
                os.utime(self._folder / held.key.folder / _KEY, (now, now))
            except OSError as error:
                log.info("cannot note the use of %s: %s", held.key.folder, error.strerror)
        held.used = now

    def _drop(self, held: _Held) -> None:
        """Whoever still reads from it may go on: its files are there until they are closed."""
        log.info("%s of %s (%d bytes) go, to make room", held.key.kind, held.key.dataset, held.nbytes)
        del self._held[held.key]
        shutil.rmtree(self._folder / held.key.folder, ignore_errors=True)


class Loan:
    """A drawer on loan: reads from it, and adds to it what its cabinet has room for."""

    def __init__(self, cabinet: Cabinet, key: Key, drawer: Drawer) -> None:
        self._cabinet, self._key, self._drawer = cabinet, key, drawer

    def __len__(self) -> int:
        return len(self._drawer)

    def find(self, ids: Ids) -> NDArray[np.int64]:
        """The row of each, -1 where there is none."""
        return self._drawer.find(ids)

    def norms(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._drawer.norms(rows)

    def added(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """When these rows were added, in milliseconds since 1970."""
        return self._drawer.added(rows)

    def read(self, rows: NDArray[np.int64]) -> list[NDArray[np.uint8] | None]:
        """The entries of these rows; None for one that is damaged."""
        return self._drawer.read(rows)

    def add(
        self, ids: Ids, sizes: NDArray[np.int64], *, entries: Sequence[Entry], norms: NDArray[np.float32]
    ) -> None:
        """Keep entries, as far as there is room."""
        size = sum(map(len, entries)) + len(ids) * RECORD.itemsize
        with self._cabinet.room(self._key, self._drawer, size) as there_is:
            if there_is:
                self._drawer.add(ids, sizes, entries=entries, norms=norms)


def _found(folder: Path) -> Iterator[_Held]:
    """The drawers that an earlier process left; a folder that is none, or another's, goes."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for place in sorted(folder.iterdir()):
        held = _look_at(place)
        if held is None or place.name != held.key.folder:
            shutil.rmtree(place, ignore_errors=True)
        else:
            yield held


def _look_at(place: Path) -> _Held | None:
    try:
        key = msgspec.json.decode((place / _KEY).read_bytes(), type=Key)
        used = (place / _KEY).stat().st_mtime
        files = [place / name for name in (INDEX, DATA)]
        size = sum(file.stat().st_size for file in files if file.exists())
    except (OSError, msgspec.MsgspecError):
        return None
    return _Held(key, size, used)
