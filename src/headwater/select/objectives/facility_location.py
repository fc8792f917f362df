"""Facility location: every sample should be like one that is taken.

The sum over all samples of the similarity to the nearest one taken. With minus the distance as similarity it
is the k-medoids problem of CRAIG (ICML 2020) and NeSSA (HotStorage 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.select.objectives.alike import Alike, Floats
from headwater.select.objectives.cover import Cover
from headwater.select.parts import Vectors
from headwater.select.samples import Ints

_CELLS = 1 << 17
"""Similarities that are worked on at once: half a MiB, which a core's own cache holds."""


@dataclass(frozen=True)
class FacilityLocation:
    """By distance of vectors; with `given`, what is passed as vectors is a matrix of similarities."""

    given: bool = False

    def begin(self, vectors: Vectors, rows: Ints) -> Located:
        return Located(Alike.given(vectors, rows) if self.given else Alike.of(vectors, rows))


class Located:
    def __init__(self, alike: Alike) -> None:
        self.shape = alike.shape
        self.cover = Cover(alike.least, self.shape[1])
        self._alike = alike
        problems, size = self.shape
        self._step = min(size, max(1, _CELLS // (problems * size)))
        self._scratch = np.empty((self._step, problems, size), np.float32)

    def gains(self, places: Ints | None = None) -> Floats:
        count = self.shape[1] if places is None else len(places)
        found = np.empty((count, self.shape[0]), np.float32)
        for begin in range(0, count, self._step):
            end = begin + self._step
            rows = self._alike.block(begin, end) if places is None else self._alike.at(places[begin:end])
            self._sum(rows, found[begin:end])
        return found

    def take(self, places: Ints) -> None:
        self.cover.add(self._alike.at(places[None])[0], places)

    def value(self) -> NDArray[np.float64]:
        above: NDArray[np.float64] = (self.cover.best - self._alike.least).sum(axis=1, dtype=np.float64)
        return above

    def _sum(self, rows: Floats, out: Floats) -> None:
        """What rows are above the best so far.

        Rounding keeps the order of numbers and the sum of a row has one order, so that no gain ever grows.
        """
        best, above = self.cover.best, self._scratch[: len(rows)]
        np.maximum(rows, best, out=above)
        np.subtract(above, best, out=above)
        np.einsum("cpm->cp", above, out=out)
