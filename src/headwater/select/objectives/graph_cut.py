"""Graph cut: like all samples, and unlike one another (as MILO uses it, 2023).

The similarity of what is taken to all samples, less `redundancy` times that among itself. At most a half
keeps every gain positive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.select.objectives.alike import Alike, Floats
from headwater.select.objectives.cover import Cover
from headwater.select.parts import Vectors
from headwater.select.samples import Ints

_CELLS = 1 << 17


@dataclass(frozen=True)
class GraphCut:
    """By distance of vectors; with `given`, what is passed as vectors is a matrix of similarities."""

    redundancy: float = 0.4
    given: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.redundancy <= 0.5:
            raise WrongUse(f"redundancy is {self.redundancy}; above 0.5 a sample could make things worse")

    def begin(self, vectors: Vectors, rows: Ints) -> Cut:
        alike = Alike.given(vectors, rows) if self.given else Alike.of(vectors, rows, keep=False)
        return Cut(alike, self.redundancy)


class Cut:
    def __init__(self, alike: Alike, redundancy: float) -> None:
        self.shape = alike.shape
        self.cover = Cover(alike.least, self.shape[1])
        self._alike, self._redundancy = alike, np.float32(redundancy)
        self._all = self._total()
        self._taken = alike.own - alike.least  # of a sample with itself, and twice with all that were taken
        self._value = np.zeros(self.shape[0])

    def gains(self, places: Ints | None = None) -> Floats:
        found: Floats = (self._all - self._redundancy * self._taken).T
        return found if places is None else np.take_along_axis(found, places, axis=0)

    def take(self, places: Ints) -> None:
        self._value += self.gains(places[None])[0]
        rows = self._alike.at(places[None])[0]
        self._taken += 2 * (rows - self._alike.least)
        self.cover.add(rows, places)

    def value(self) -> NDArray[np.float64]:
        return self._value

    def _total(self) -> Floats:
        """The similarity of each sample to all."""
        problems, size = self.shape
        found, step = np.empty((problems, size), np.float32), max(1, _CELLS // (problems * size))
        for begin in range(0, size, step):
            rows = self._alike.block(begin, begin + step) - self._alike.least
            found[:, begin : begin + step] = np.einsum("cpm->pc", rows)
        return found
