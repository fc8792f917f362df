"""The files of a registry: where each lies, one writer at a time, and each there whole or not at all."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.data.atomic import replacing
from headwater.errors import ModelError

KINDS = {
    "versions": ".json",
    "places": ".json",
    "graphs": ".onnx",
    "packs": ".safetensors",
    "deltas": "",
    "current": "",
    "sealed": ".json",
}
"""A folder for each kind of file, and how names end in it."""
LOCK_SECONDS = 60.0
_PAUSE_SECONDS = 0.02


def models_folder() -> Path:
    """`$HEADWATER_MODELS`, else `$XDG_DATA_HOME/headwater/models`, else `~/.local/share/headwater/models`."""
    chosen = os.environ.get("HEADWATER_MODELS")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "headwater" / "models"


class Shelf:
    """Named files below one folder, which is made when the first is written. Readers take no lock."""

    def __init__(self, folder: str | os.PathLike[str], *, lock_seconds: float = LOCK_SECONDS) -> None:
        self.folder = Path(folder)
        self._lock_seconds = lock_seconds

    def path(self, kind: str, name: str) -> Path:
        """Where the file lies, or would."""
        return self.folder / kind / f"{name}{KINDS[kind]}"

    def names(self, kind: str) -> list[str]:
        """What there is of a kind, sorted; files that are being written are not there yet."""
        try:
            found = sorted(os.listdir(self.folder / kind))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ModelError(f"cannot read the registry {self.folder}: {error.strerror}") from error
        ending = KINDS[kind]
        return [
            name.removesuffix(ending) for name in found if not name.startswith(".") and name.endswith(ending)
        ]

    def read(self, kind: str, name: str) -> bytes | None:
        """The bytes of a file, or None if there is none."""
        try:
            return self.path(kind, name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ModelError(f"cannot read {self.path(kind, name)}: {error.strerror}") from error

    def write(self, kind: str, name: str, data: bytes) -> None:
        """Put a file there, on disk when this returns; only while `writing`."""
        try:
            with replacing(self.path(kind, name)) as file:
                file.write(data)
        except OSError as error:
            raise ModelError(f"cannot write to the registry {self.folder}: {error.strerror}") from error

    def remove(self, kind: str, name: str) -> int:
        """Take a file away; the bytes that this frees. Only while `writing`."""
        return _remove(self.path(kind, name))

    def sweep(self) -> int:
        """Remove what killed writers left half done; the bytes that this frees. Only while `writing`."""
        left = [path for kind in KINDS for path in (self.folder / kind).glob(".*")]
        return sum(_remove(path) for path in left)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The right to write, for one thread of one process at a time; raises `ModelError` if it is late."""
        try:
            for kind in KINDS:
                (self.folder / kind).mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ModelError(f"cannot write to the registry {self.folder}: {error.strerror}") from error
        try:
            self._wait_for(lock)
            yield
        finally:
            os.close(lock)

    def _wait_for(self, lock: int) -> None:
        """The lock goes when its descriptor is closed, so also when the process is killed."""
        end = time.monotonic() + self._lock_seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise ModelError(
                        f"another process has been writing to the registry {self.folder} for "
                        f"{self._lock_seconds:g} s; wait for it, or end it"
                    ) from None
            time.sleep(_PAUSE_SECONDS)


def _remove(path: Path) -> int:
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise ModelError(f"cannot remove {path}: {error.strerror}") from error
    return size
