"""Shipments on their way to a store: one per caller and model, in files, so that a restart loses none.

What has come of a shipment is the length of its file: bytes are only ever added at its end. Whether they are
the right ones is known when all have come, by their digest.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from headwater.data.atomic import replacing
from headwater.engine.budget import Busy
from headwater.errors import ModelError, ModelRefused
from headwater.models.version import digest_of

IDLE_SECONDS = 3600.0
"""After so long without a byte a shipment is given up when another needs its room, or at the next start."""
_ALIVE_SECONDS = 10.0  # a caller may send something else under the same name after that
_RECORD, _BODY = ".json", ".body"


class Upload(msgspec.Struct, frozen=True):
    """A shipment that a caller has announced; `version` and `digest` are those of what comes."""

    caller: str
    name: str
    version: str
    digest: str
    length: int
    base: str | None
    manifest: bytes

    @property
    def key(self) -> str:
        """What its files are called."""
        return digest_of(f"{self.caller}\n{self.version}\n{self.digest}".encode())


class Uploads:
    """The shipments below one folder. Safe to use from many threads.

    `most_bytes` bounds one of them; all together are at most twice that. `clock` gives the time of day, as
    files have it.
    """

    def __init__(self, folder: Path, *, most_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self.most_bytes = most_bytes
        self._folder, self._clock = folder, clock
        self._lock = threading.RLock()
        self._uploads: dict[str, Upload] = {}
        self._restore()

    def begin(self, upload: Upload) -> int:
        """Announce it; how many bytes of it have come already. Raises `ModelRefused`, or `Busy`."""
        if upload.length > self.most_bytes:
            raise ModelRefused(
                f"{upload.length:,} bytes for version {upload.version[:12]}; this store takes "
                f"{self.most_bytes:,}: raise model_bytes there"
            )
        with self._lock:
            known = self._uploads.get(upload.key)
            if known is not None and (known.length, known.base) == (upload.length, upload.base):
                return self._size(upload)
            self._make_room(upload)
            self._write(upload)
            self._uploads[upload.key] = upload
            return 0

    def find(self, caller: str, version: str, digest: str) -> Upload | None:
        """What this caller has announced, if he has."""
        key = Upload(caller, "", version, digest, 0, None, b"").key
        with self._lock:
            return self._uploads.get(key)

    def add(self, upload: Upload, offset: int, data: bytes) -> tuple[int, int]:
        """How many bytes have come in all, and how many of these are new.

        Nothing is written but where the file ends: what has come before is passed over, a gap is not made.
        """
        with self._lock:
            have = self._size(upload)
            new = data[have - offset :] if offset <= have else b""
            if have + len(new) > upload.length:
                raise ModelRefused(f"more than the {upload.length:,} bytes that were announced")
            self._append(upload, have, new)
            return have + len(new), len(new)

    def read(self, upload: Upload) -> bytes:
        """All of it; raises `ModelRefused` where bytes lack, or are others than announced: that drops it."""
        with self._lock:
            have = self._size(upload)
            if have < upload.length:
                raise ModelRefused(f"{have:,} of {upload.length:,} bytes have come; send the rest")
            body = self._path(upload, _BODY).read_bytes()
        if digest_of(body) != upload.digest:
            self.drop(upload)
            raise ModelRefused(
                f"what came has the digest {digest_of(body)}, not {upload.digest}; send it again"
            )
        return body

    def drop(self, upload: Upload) -> None:
        """Forget it."""
        with self._lock:
            self._uploads.pop(upload.key, None)
            for kind in (_RECORD, _BODY):
                self._path(upload, kind).unlink(missing_ok=True)

    def _make_room(self, upload: Upload) -> None:
        """One at a time for each caller and name, and no more in all than the disk is meant to hold."""
        for other in list(self._uploads.values()):
            same = (other.caller, other.name) == (upload.caller, upload.name)
            idle = self._idle_seconds(other)
            if idle > IDLE_SECONDS or (same and (idle > _ALIVE_SECONDS or other.key == upload.key)):
                self.drop(other)
            elif same:
                raise Busy(
                    f"{upload.caller} is sending another version of {upload.name!r}; wait for that one"
                )
        if sum(other.length for other in self._uploads.values()) + upload.length > 2 * self.most_bytes:
            raise Busy("other models are on their way to this store and fill its room; try again later")

    def _write(self, upload: Upload) -> None:
        try:
            with replacing(self._path(upload, _RECORD)) as file:
                file.write(msgspec.json.encode(upload))
            self._path(upload, _BODY).write_bytes(b"")
        except OSError as error:
            raise _no_room(error) from error

    def _append(self, upload: Upload, have: int, data: bytes) -> None:
        path = self._path(upload, _BODY)
        try:
            with path.open("ab") as file:
                file.write(data)
        except OSError as error:
            os.truncate(path, have)
            raise _no_room(error) from error

    def _restore(self) -> None:
        """Find what was on its way before a restart; remove what nobody goes on with, and torn files."""
        for path in sorted(self._folder.iterdir()):
            if path.suffix == _RECORD and not path.name.startswith("."):
                upload = _read(path)
                if upload is not None and self._idle_seconds(upload) <= IDLE_SECONDS:
                    self._uploads[upload.key] = upload
        kept = {self._path(upload, kind) for upload in self._uploads.values() for kind in (_RECORD, _BODY)}
        for path in self._folder.iterdir():
            if path not in kept:
                path.unlink()

    def _size(self, upload: Upload) -> int:
        try:
            return self._path(upload, _BODY).stat().st_size
        except FileNotFoundError:
            return 0

    def _idle_seconds(self, upload: Upload) -> float:
        try:
            return self._clock() - self._path(upload, _BODY).stat().st_mtime
        except FileNotFoundError:
            return float("inf")

    def _path(self, upload: Upload, kind: str) -> Path:
        return self._folder / f"{upload.key}{kind}"


def _no_room(error: OSError) -> ModelError:
    return ModelError(f"the store cannot keep what is sent: {error.strerror}; make room there")


def _read(path: Path) -> Upload | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Upload)
    except (OSError, msgspec.MsgspecError):
        return None
