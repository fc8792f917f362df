"""Images that a store was sent and keeps: tar shards that grow, and become a dataset when they are sealed.

A shard is `STEM.tar.open` while it grows, `STEM.tar.full` when it is large enough, and `STEM.tar` when it is
sealed. Stems are unique wherever inboxes are, and an image's key is the stem and the digest of its bytes: its
id is known when it is kept, and is that of the sealed dataset.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from headwater.data.atomic import sync_folder
from headwater.data.index import sample_ids
from headwater.errors import HeadwaterError
from headwater.store.server.shard import Arrival, GrowingShard, digests_in, remove_members

SHARD_BYTES = 256 << 20
SHARD_IMAGES = 1 << 16
_SEALED, _FULL, _OPEN = ".tar", ".tar.full", ".tar.open"


class Kept(NamedTuple):
    """Where an image is kept."""

    id: int
    key: str


class Inbox:
    """The images of one folder. Safe to use from many threads; one process at a time.

    An image that is in the shard that grows, or in the one before, is not kept a second time: who was not
    told that it is kept sends it again. `clock` gives the time of day.
    """

    def __init__(
        self,
        folder: Path,
        *,
        shard_bytes: int = SHARD_BYTES,
        shard_images: int = SHARD_IMAGES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self._shard_bytes, self._shard_images, self._clock = shard_bytes, shard_images, clock
        self._lock = threading.Lock()
        self._before: dict[str, str] = {}  # digest > key, in the shard before the one that grows
        self._now: dict[str, str] = {}
        self._shard: GrowingShard | None = None
        self._full_bytes = self._sealed_bytes = 0
        try:
            self._restore()
        except OSError as error:
            raise _broken(error) from error

    @property
    def unsealed_bytes(self) -> int:
        """Bytes of shards that are not sealed."""
        shard = self._shard
        return self._full_bytes + (0 if shard is None else shard.nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return self._sealed_bytes + self.unsealed_bytes

    @property
    def is_sealed(self) -> bool:
        """Whether any shard is sealed."""
        return bool(self._list(_SEALED))

    def add(self, arrivals: Sequence[Arrival]) -> list[Kept]:
        """Keep images, which are on disk when this returns. Raises `HeadwaterError`, and keeps none."""
        digests = [arrival.digest for arrival in arrivals]
        with self._lock:
            pairs = zip(digests, arrivals, strict=True)
            fresh = {digest: arrival for digest, arrival in pairs if self._find(digest) is None}
            try:
                if fresh:
                    self._append(fresh)
            except OSError as error:
                raise _broken(error) from error
            keys = [self._find(digest) or "" for digest in digests]
        return [Kept(int(id), key) for id, key in zip(sample_ids(keys), keys, strict=True)]

    def fresh_bytes(self, arrivals: Sequence[Arrival]) -> int:
        """Bytes of those that `add` would not find here."""
        sizes = {arrival.digest: len(arrival.data) for arrival in arrivals}
        with self._lock:
            return sum(size for digest, size in sizes.items() if self._find(digest) is None)

    def seal(self) -> int:
        """Make all that is kept part of the dataset; how many shards that were. Raises `HeadwaterError`."""
        with self._lock:
            try:
                self._close_shard()
                full = self._list(_FULL)
                for path in full:
                    path.rename(_named(path, _SEALED))
                sync_folder(self.folder)
                self._sealed_bytes, self._full_bytes = self.nbytes, 0
            except OSError as error:
                raise _broken(error) from error
        return len(full)

    def forget(self, digests: Collection[str]) -> list[Kept]:
        """Remove images by the digests of their bytes, on disk when this returns; those that there were.

        Shards that have one are written anew. Raises `HeadwaterError`.
        """
        with self._lock:
            try:
                found = [key for path in self._all() for key in _keys_of(path, digests)]
                if found:
                    self._close_shard()
                    for path in self._list(_SEALED) + self._list(_FULL):
                        remove_members(path, digests)
                for left in self.folder.glob(".*"):  # of a process that was killed while it wrote one anew
                    left.unlink(missing_ok=True)
                self._sealed_bytes = _bytes_of(self._list(_SEALED))
                self._full_bytes = _bytes_of(self._list(_FULL))
            except OSError as error:
                raise _broken(error) from error
            for known in (self._before, self._now):
                for digest in digests:
                    known.pop(digest, None)
        return [Kept(int(id), key) for id, key in zip(sample_ids(found), found, strict=True)]

    def close(self) -> None:
        """Let go of the file; what is kept stays."""
        with self._lock:
            if self._shard is not None:
                self._shard.close()
                self._shard = None

    def _find(self, digest: str) -> str | None:
        """The key of an image that is kept already."""
        return self._now.get(digest) or self._before.get(digest)

    def _append(self, fresh: dict[str, Arrival]) -> None:
        shard = self._shard
        if shard is not None and (shard.nbytes >= self._shard_bytes or len(shard) >= self._shard_images):
            self._close_shard()
        if self._shard is None:
            self._shard = self._open(self.folder / f"{self._new_stem()}{_OPEN}")
        self._shard.append(list(fresh.values()))
        self._now |= _keys(self._shard.path, fresh)

    def _close_shard(self) -> None:
        """The shard that grows, if there is one, grows no more."""
        shard, self._shard = self._shard, None
        if shard is None:
            return
        try:
            shard.finish()
            _put_away(shard)
        except OSError:
            shard.close()
            self._shard = self._open(shard.path)
            raise
        sync_folder(self.folder)
        self._full_bytes += shard.nbytes
        self._before, self._now = self._now, {}

    def _restore(self) -> None:
        """Go on where the last process ended, whatever it was at."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sealed, full = self._list(_SEALED), self._list(_FULL)
        self._sealed_bytes, self._full_bytes = _bytes_of(sealed), _bytes_of(full)
        done = sorted(sealed + full)
        if done:
            self._before = _keys(done[-1], digests_in(done[-1]))
        for path in self._list(_OPEN):  # one, unless a full disk kept one from being put away
            self._close_shard()
            self._shard = self._open(path)
            self._now = _keys(path, self._shard.digests)

    def _open(self, path: Path) -> GrowingShard:
        return GrowingShard(path, clock=self._clock)

    def _list(self, ending: str) -> list[Path]:
        """Shards of a kind, the oldest first."""
        return sorted(self.folder.glob(f"*{ending}"))

    def _all(self) -> list[Path]:
        return [path for ending in (_SEALED, _FULL, _OPEN) for path in self._list(ending)]

    def _new_stem(self) -> str:
        """Sorts by time, and is nobody else's: labels of several stores may lie in one database."""
        begun = datetime.fromtimestamp(self._clock(), UTC)
        return f"{begun:%Y%m%dT%H%M%S%f}-{os.urandom(4).hex()}"


def bytes_in(folder: Path) -> int:
    """Bytes of all shards of an inbox that nobody writes to."""
    return sum(_bytes_of(list(folder.glob(f"*{ending}"))) for ending in (_SEALED, _FULL, _OPEN))


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]


def _named(path: Path, ending: str) -> Path:
    return path.with_name(f"{_stem(path)}{ending}")


def _bytes_of(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _put_away(shard: GrowingShard) -> None:
    """A finished shard waits to be sealed; an empty one is nothing to keep."""
    if len(shard):
        shard.path.rename(_named(shard.path, _FULL))
    else:
        shard.path.unlink()


def _keys(path: Path, digests: Sequence[str] | dict[str, Arrival]) -> dict[str, str]:
    return {digest: f"{_stem(path)}/{digest}" for digest in digests}


def _keys_of(path: Path, digests: Collection[str]) -> list[str]:
    """Of the images of a shard that are among these."""
    return [f"{_stem(path)}/{digest}" for digest in digests_in(path) if digest in digests]


def _broken(error: OSError) -> HeadwaterError:
    return HeadwaterError(f"the store cannot keep images: {error.strerror}; make room, and check its disk")
