"""Bytes that each way makes of a file: a line over the lengths of files, learned from what came.

A codec's bytes grow with those of the file, a crop's pixels do not: a line has both.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.plan.offload import Offload

Doubles = NDArray[np.float64]

_TELLING = 8
"""Samples that tell of a way."""


class Lengths:
    """What is known of ways so far. Safe to use from many threads."""

    def __init__(self) -> None:
        self._sums: dict[Offload, Doubles] = defaultdict(lambda: np.zeros(5))
        self._lock = threading.Lock()

    def learn(self, way: Offload, files: NDArray[np.integer[Any]], made: NDArray[np.integer[Any]]) -> None:
        """Of files of these lengths a way made so many bytes each."""
        x, y = files.astype(np.float64), made.astype(np.float64)
        with self._lock:
            self._sums[way] += (len(x), x.sum(), y.sum(), (x * x).sum(), (x * y).sum())

    def predict(self, way: Offload, files: NDArray[np.integer[Any]]) -> Doubles:
        """Bytes that it will make of each; NaN while too little is known, and where no length is."""
        lengths = np.where(files > 0, files, np.nan).astype(np.float64)
        if not way.cut:
            return lengths
        with self._lock:
            count, x, y, squares, products = self._sums[way].tolist()
        if count < _TELLING:
            return np.full(len(files), np.nan)
        x, y = x / count, y / count
        spread = squares / count - x * x
        slope = max(0.0, products / count - x * y) / spread if spread > 1e-6 * x * x else 0.0
        # what is far from all that came is not thought to be made into nothing
        found: Doubles = np.maximum(y + slope * (lengths - x), y / 100)
        return found
