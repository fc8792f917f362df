"""Which of the taken samples each sample is most like."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headwater.select.objectives.alike import Floats
from headwater.select.samples import Ints


class Cover:
    """The greatest similarity of each sample to what was taken, and to which of it; the first of equals."""

    def __init__(self, least: Floats, size: int) -> None:
        self.best: Floats = np.repeat(least, size, axis=1)
        self._owner: NDArray[np.int32] = np.zeros(self.best.shape, np.int32)
        self._problems = np.arange(len(least))
        self._taken = 0

    def add(self, rows: Floats, places: Ints) -> None:
        """One more sample in each problem, with its similarities; it stands for itself in any case."""
        np.copyto(self._owner, self._taken, where=rows > self.best)
        np.maximum(self.best, rows, out=self.best)
        self._owner[self._problems, places] = self._taken
        self._taken += 1

    def sizes(self) -> Ints:
        """How many samples each one that was taken stands for, (problems, taken)."""
        shifted = self._owner + self._problems[:, None] * self._taken
        counts = np.bincount(shifted.ravel(), minlength=len(self._problems) * self._taken)
        return counts.reshape(len(self._problems), self._taken)
