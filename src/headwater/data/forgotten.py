"""Samples that are to be as if they had never been there, although their files may still lie in the data.

Data are read in place and often may not be written to, so what is forgotten is left out when a dataset is
indexed. The list of it tells nobody what it was: it holds keyed hashes of ids, and the key lies beside it,
readable by its owner only. A folder, in a store's state or the user's own, holds

    key            32 random bytes
    lists/NAME     the hashes of one dataset
    audit.jsonl    a line for each time that somebody forgot something
    plans/         what is being forgotten, in clear until that is done
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.data.atomic import replacing, sync_folder
from headwater.errors import DatasetError

FORMAT = 1
_KEY_BYTES = 32
_LISTS, _KEY, _LOCK = "lists", "key", "lock"


def forgotten_folder() -> Path:
    """`$HEADWATER_FORGOTTEN`, else `forgotten` in the user's data folder for Headwater."""
    chosen = os.environ.get("HEADWATER_FORGOTTEN")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "headwater" / "forgotten"


class _List(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hashes: tuple[str, ...]
    format: int = FORMAT


class Forgotten:
    """The forgotten samples of one dataset, by keyed hashes of their ids. It is read when it is made.

    A list that cannot be read is an error, never an empty one: what was forgotten must not come back. Raises
    `DatasetError`.
    """

    def __init__(self, folder: Path, name: str) -> None:
        """`name` tells the dataset from others in the folder; it may be any text."""
        self.folder, self.name = folder, name
        self._path = folder / _LISTS / hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        self._hashes = self._read()
        self._key = self._read_key() if self._hashes else b""

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    @property
    def digest(self) -> str:
        """Of all that is forgotten; empty where nothing is."""
        if not self._hashes:
            return ""
        return hashlib.blake2b("\n".join(sorted(self._hashes)).encode(), digest_size=16).hexdigest()

    @property
    def mark(self) -> str:
        """What tells this list from others, as long as it is; empty where nothing is forgotten."""
        return self._hash("this list") if self._hashes else ""

    def hash(self, id: int) -> str:
        """The keyed hash of an id, HMAC-SHA256 in hexadecimal; the key is made if there is none."""
        self._key = self._key or self._make_key()
        return self._hash(str(id))

    def among(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these are forgotten."""
        if not self._hashes:
            return np.zeros(len(ids), np.bool_)
        return np.fromiter((self._hash(str(id)) in self._hashes for id in ids.tolist()), np.bool_, len(ids))

    def add(self, ids: Iterable[int]) -> int:
        """Forget these too, on disk when this returns; how many were not forgotten before."""
        with locked(self.folder):
            new = {self.hash(id) for id in ids} - (known := self._read())
            if new:
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
                with replacing(self._path) as file:
                    file.write(msgspec.json.encode(_List(tuple(sorted(known | new)))))
            self._hashes = frozenset(known | new)
        return len(new)

    def _hash(self, text: str) -> str:
        return hmac.digest(self._key, f"{self.name}\n{text}".encode(), "sha256").hex()

    def _read(self) -> frozenset[str]:
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_List)
        except FileNotFoundError:
            return frozenset()
        except (OSError, msgspec.MsgspecError) as error:
            raise DatasetError(
                f"the list of forgotten samples {self._path} cannot be read: {error}; bring it back from a "
                "backup, because without it they would be there again"
            ) from error
        if found.format != FORMAT:
            raise DatasetError(
                f"{self._path} has format {found.format}, this version reads {FORMAT}; upgrade Headwater"
            )
        return frozenset(found.hashes)

    def _read_key(self) -> bytes:
        try:
            found = (self.folder / _KEY).read_bytes()
        except OSError as error:
            raise _lost_key(self.folder, str(error.strerror)) from error
        if len(found) != _KEY_BYTES:
            raise _lost_key(self.folder, f"it has {len(found)} bytes instead of {_KEY_BYTES}")
        return found

    def _make_key(self) -> bytes:
        """The folder's key; whoever comes second takes the first one's."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / _KEY
        if not path.exists():
            draft = self.folder / f".key.{os.urandom(8).hex()}"
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(os.urandom(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(draft, path)
            draft.unlink()
            sync_folder(self.folder)
        return self._read_key()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time changes what lies in a folder of forgotten samples."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _lost_key(folder: Path, why: str) -> DatasetError:
    return DatasetError(
        f"the key of the forgotten samples, {folder / _KEY}, cannot be read: {why}; bring it back from a "
        "backup, because without it they would be there again"
    )
