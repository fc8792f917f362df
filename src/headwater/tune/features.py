"""Features at the tuner: rows of float16 in a file mapped into memory, so that no epoch fetches them again.

Rows come lot by lot, and a digest of each lot is appended to a second file once the rows are written. What
was there when the process was killed, or the machine lost power, is known by its digest; the rest is fetched
again.
"""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

from headwater.errors import ModelError
from headwater.tune.runs import Lot, Lots

Halves = NDArray[np.float16]

_DIGEST = 8


class FeatureFile:
    """Features of all lots in their order; one process writes it, and each lot once.

    A sample without features, because its file is damaged, has a row of NaN. Raises `ModelError` where the
    folder cannot be written to, or has too little room.
    """

    def __init__(self, folder: Path, lots: Lots, *, width: int) -> None:
        self.lots = lots
        self.rows = rows = lots[-1].rows.stop if lots else 0
        self._changed = threading.Condition()
        try:
            self._values = _map(folder / "features.f16", rows * width).reshape(rows, width)
            self._log: BinaryIO = _open(folder / "features.log")
        except OSError as error:
            raise ModelError(
                f"cannot keep {2 * rows * width:,} bytes of features in {folder}: {error.strerror}; make "
                "room, or set HEADWATER_CACHE to another folder"
            ) from error
        self._sound = np.zeros(rows, bool)
        self._here = self._count_sound()
        self._log.truncate(self._here * _DIGEST)
        self._log.seek(0, os.SEEK_END)

    @property
    def here(self) -> int:
        """How many lots are here, from the first on."""
        return self._here

    @property
    def rows_here(self) -> int:
        """How many rows are here."""
        return self.lots[self._here - 1].rows.stop if self._here else 0

    def put(self, lot: Lot, values: Halves) -> None:
        """Keep the features of the next lot."""
        assert lot.number == self._here
        self._values[lot.rows] = values
        self._note_sound(lot)
        self._log.write(self._digest(lot))
        self._log.flush()
        with self._changed:
            self._here += 1
            self._changed.notify_all()

    def wake(self) -> None:
        """Let whoever waits look again."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Until something changes, or so long."""
        with self._changed:
            self._changed.wait(seconds)

    def take(self, rows: NDArray[np.int64]) -> Halves:
        """The features in these rows, as a copy."""
        found: Halves = self._values[rows]
        return found

    def sound(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these rows are here and have features; no page of the file is read for it."""
        known: NDArray[np.bool_] = self._sound[rows]
        return known

    def close(self) -> None:
        self._log.close()

    def _note_sound(self, lot: Lot) -> None:
        self._sound[lot.rows] = ~np.isnan(self._values[lot.rows, 0])

    def _digest(self, lot: Lot) -> bytes:
        return xxhash.xxh3_64_digest(np.ascontiguousarray(self._values[lot.rows]).data)

    def _count_sound(self) -> int:
        """Lots whose digest was written and is that of their rows, up to the first that is not."""
        self._log.seek(0)
        kept = self._log.read()
        for lot in self.lots:
            written = kept[lot.number * _DIGEST : (lot.number + 1) * _DIGEST]
            if written != self._digest(lot):
                return lot.number
            self._note_sound(lot)
        return len(self.lots)


def _open(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")


def _map(path: Path, count: int) -> Halves:
    """A file of so many halves; room for all of them is taken at once, so that none is missing later."""
    size = 2 * count
    with _open(path) as file:
        if size and os.fstat(file.fileno()).st_size != size:
            file.truncate(0)
            os.posix_fallocate(file.fileno(), 0, size)
        if not size:
            return np.empty(0, np.float16)
        return np.frombuffer(mmap.mmap(file.fileno(), size), np.float16)
