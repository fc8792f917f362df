"""Vectors taken apart by how much their directions bend, so that each is pulled back by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
Numbers = NDArray[np.floating[Any]]


class Apart(Protocol):
    """A vector, as what it has in each of some groups of directions."""

    @property
    def bends(self) -> Numbers:
        """How much each group bends."""
        ...

    @property
    def squares(self) -> Numbers:
        """The square of the length of what lies in each group."""
        ...

    def times(self, factors: Numbers) -> Apart:
        """With each group multiplied by its factor."""
        ...

    def plus(self, other: Apart) -> Apart:
        """The sum with a vector that was taken apart by the same prior."""
        ...

    def whole(self) -> Vector:
        """The vector."""
        ...


@dataclass(frozen=True, eq=False)
class Unparted:
    """All of a vector in one group, which bends by 1."""

    vector: Vector

    @property
    def bends(self) -> Numbers:
        return np.ones(1)

    @property
    def squares(self) -> Numbers:
        return np.array([float(np.vdot(self.vector, self.vector))])

    def times(self, factors: Numbers) -> Unparted:
        return Unparted(self.vector * np.float32(factors[0]))

    def plus(self, other: Apart) -> Unparted:
        return Unparted(self.vector + other.whole())

    def whole(self) -> Vector:
        return self.vector
