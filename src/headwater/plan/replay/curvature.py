"""What knows how a gradient changes with the weights, from pairs of a move and what it did."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


class Curvature(Protocol):
    """An approximation B of a Hessian."""

    def observe(self, move: Vector, change: Vector) -> bool:
        """Learn what a move of the weights did to the gradient; False for a pair that tells nothing."""
        ...

    def times(self, vector: Vector) -> Vector:
        """B times a vector."""
        ...

    def __len__(self) -> int:
        """How many pairs are known."""
        ...
