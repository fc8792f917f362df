"""k-center: no sample should be far from what is taken.

The gain of a sample is its own distance to what was taken, so that the greedy is farthest-first, which is
within twice the least radius (Gonzalez 1985). All are equally far before one is taken: the first begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.select.objectives.alike import Alike, Floats
from headwater.select.objectives.cover import Cover
from headwater.select.parts import Vectors
from headwater.select.samples import Ints


@dataclass(frozen=True)
class KCenter:
    """By distance of vectors; with `given`, what is passed as vectors is a matrix of similarities."""

    given: bool = False

    def begin(self, vectors: Vectors, rows: Ints) -> Spread:
        return Spread(Alike.given(vectors, rows) if self.given else Alike.of(vectors, rows, keep=False))


class Spread:
    def __init__(self, alike: Alike) -> None:
        self.shape = alike.shape
        self.cover = Cover(alike.least, self.shape[1])
        self._alike = alike

    def gains(self, places: Ints | None = None) -> Floats:
        far: Floats = -self.cover.best.T
        return far if places is None else np.take_along_axis(far, places, axis=0)

    def take(self, places: Ints) -> None:
        self.cover.add(self._alike.at(places[None])[0], places)

    def value(self) -> NDArray[np.float64]:
        """Minus the distance of the sample that is farthest from what was taken."""
        least: NDArray[np.float64] = self.cover.best.min(axis=1).astype(np.float64)
        return least
