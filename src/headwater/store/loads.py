"""What it takes to send each sample, as plans and codecs have it now: for selectors that weigh it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headwater.data.index import Index

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Load:
    """Bytes and seconds of each sample of an index, the last time that it was sent; NaN: never."""

    bytes: Floats
    seconds: Floats


@dataclass(frozen=True, eq=False)
class Loads:
    """Loads by version of a dataset, 8 bytes for each sample of one that was read. Safe from many threads."""

    _known: dict[str, Load] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, index: Index, positions: NDArray[np.int64], *, bytes: Floats, seconds: Floats) -> None:
        """Samples were sent; those of no bytes were not, and teach nothing."""
        sent = bytes > 0
        with self._lock:
            if index.version not in self._known:
                unknown = np.full((2, len(index)), np.nan, np.float32)
                self._known[index.version] = Load(unknown[0], unknown[1])
            load = self._known[index.version]
            load.bytes[positions[sent]], load.seconds[positions[sent]] = bytes[sent], seconds[sent]

    def of(self, index: Index) -> Load | None:
        """What is known of a dataset; None while nothing of it was sent."""
        return self._known.get(index.version)


def share(total: float, bytes: Floats) -> Floats:
    """Seconds of a request among its samples, by their bytes."""
    whole = float(bytes.sum())
    found: Floats = (total * bytes / whole).astype(np.float32) if whole else np.zeros(len(bytes), np.float32)
    return found
