"""What a store keeps beside its data: models, labels, jobs, features, an inbox. One daemon per folder."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headwater.errors import HeadwaterError, WrongUse
from headwater.store.labels import open_labels

if TYPE_CHECKING:
    from headwater.models.registry import Registry
    from headwater.store.labels.database import LabelDatabase

T = TypeVar("T")

FORGOTTEN = "forgotten"
"""The folder of forgotten samples: lists, their key, and the audit."""
_LOCK = "lock"
_LABELS = "labels.db"


class State:
    """The folder of a store. `with` takes it for this process and gives it back; kill -9 gives it back too.

    Its parts are opened when they are first asked for, so that a store without the extras that they need
    serves its data all the same. Safe to use from many threads.
    """

    def __init__(self, folder: Path, *, labels: str | None = None) -> None:
        """`labels` is the URL of a label database elsewhere; without it there is one in the folder."""
        self.folder = folder
        self._labels = labels
        self._lock = threading.RLock()
        self._parts: dict[str, Any] = {}
        self._ending = ExitStack()

    def __enter__(self) -> State:
        self._ending.callback(os.close, _take(self.folder))
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    @property
    def models(self) -> Path:
        """Where the registry lies, for `headwater models --registry` on this machine."""
        return self.folder / "models"

    @property
    def registry(self) -> Registry:
        """The models."""
        return self._part("registry", self._open_registry)

    @property
    def labels(self) -> LabelDatabase:
        """The labels; raises `MissingExtra` where what they need is not installed."""
        return self._part("labels", self._open_labels)

    @property
    def kept_labels(self) -> LabelDatabase | None:
        """The labels, None where none were kept yet: to look makes no file."""
        if self._labels is None and not (self.folder / _LABELS).exists():
            return None
        return self.labels

    def subfolder(self, name: str) -> Path:
        """A folder below this one, made if need be."""
        path = self.folder / name
        try:
            path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise HeadwaterError(f"cannot make {path}: {error.strerror}; check --state") from error
        return path

    def hide(self, error: HeadwaterError) -> HeadwaterError:
        """The same error without where the folder lies, which is nobody's business beyond this machine."""
        text = str(error)
        return type(error)(text.replace(os.fspath(self.folder), "STATE")) if self._is_named(text) else error

    def _is_named(self, text: str) -> bool:
        return os.fspath(self.folder) in text

    def _part(self, name: str, open: Callable[[], T]) -> T:
        with self._lock:
            if name not in self._parts:
                self._parts[name] = open()
            found: T = self._parts[name]
            return found

    def _open_registry(self) -> Registry:
        from headwater.models.registry import Registry

        return Registry(self.models)

    def _open_labels(self) -> LabelDatabase:
        database = open_labels(self._labels or self.folder / _LABELS)
        self._ending.callback(database.close)
        return database


def _take(folder: Path) -> int:
    """A locked descriptor; raises `WrongUse` for a folder that cannot be used, or that another store uses."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise WrongUse(f"{folder} cannot keep a store's state: {error.strerror}; check --state") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        raise WrongUse(f"another store keeps its state in {folder}; give each a folder of its own") from error
    return held


def is_taken(folder: Path) -> bool:
    """Whether a daemon uses the folder now."""
    try:
        held = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(held)
    return False
