"""The tables that states of a loader name: files by digest in one folder, the last few of a run."""

from __future__ import annotations

import os
from pathlib import Path

from headwater.data.index import Index, write_batch
from headwater.errors import StateMismatch
from headwater.measure.signalfile import as_batch, read_signals
from headwater.measure.signals import Signals

SUFFIX = ".arrow"
KEPT = 3
"""Tables that a run keeps, of the states that were taken last; each is a file of all that is known."""


class Tables:
    """Writes tables, and removes those that itself wrote before the last `KEPT`; never another's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: list[str] = []  # the oldest first

    def save(self, signals: Signals, index: Index) -> str:
        """Write a table and return the digest that it is found by; raises `StateMismatch` if that fails."""
        batch, digest = as_batch(signals, dataset=index.version)
        path = self._path(digest)
        own = digest in self._written or not path.exists()  # one that was there is some other state's
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_batch(path, batch)
        except OSError as error:
            raise StateMismatch(
                f"cannot save what the selector knows in {self.folder}: {error.strerror}; make room, or "
                "pass signals=FOLDER"
            ) from error
        if own:
            self._written = [one for one in self._written if one != digest] + [digest]
            self._tidy()
        return digest

    def load(self, digest: str, index: Index) -> Signals:
        """A saved table; raises `StateMismatch` where it is not, or is not of this data."""
        path = self._path(digest)
        if not path.exists():
            raise StateMismatch(
                f"the state goes with {os.fspath(path)}, which is not here; a run keeps those of its last "
                f"{KEPT} states: bring it, or pass signals=FOLDER"
            )
        return read_signals(path, index, folder=self.folder)

    def _tidy(self) -> None:
        """After the new one is on disk, so that a process that is killed has one too many, never too few."""
        while len(self._written) > KEPT:
            self._path(self._written.pop(0)).unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}{SUFFIX}"
