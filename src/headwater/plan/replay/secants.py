"""How a gradient changes with the weights, from what it did along the last few moves: multi-secant form.

With unit moves S and their changes Y as rows, a vector is taken apart into what lies in the span of S, of
which the change is known, and a rest that is scaled by sigma = y.s of the last pair:

    B v = sigma v + (Y - sigma S)' (S S')^+ S v

Where a run is followed with a full batch, v moves slowly and smoothly, so nearly all of it lies in that
span: the curve of (v, y) is extrapolated to the order of the number of pairs, as in Anderson's mixing (JACM
1965). L-BFGS asks for symmetry as well, and keeps less of the pairs before the last.
"""

from __future__ import annotations

import numpy as np

from headwater.plan.replay.curvature import Vector

_ALIKE = 1e-6
"""Directions of S S' below this share of its largest are left out: there moves differ by little more than their
rounding, which would be blown up."""


class Secants:
    """B, from the last `pairs` that it was told; 0 without any. A `Curvature`."""

    def __init__(self, pairs: int = 4) -> None:
        self._most = pairs
        self._moves: list[Vector] = []
        self._changes: list[Vector] = []

    def __len__(self) -> int:
        return len(self._moves)

    def observe(self, move: Vector, change: Vector) -> bool:
        length = float(np.linalg.norm(move))
        if not (np.isfinite(length) and length > 0 and np.isfinite(np.vdot(change, change))):
            return False
        scale = np.float32(1 / length)
        self._moves = [*self._moves, move * scale][-self._most :]
        self._changes = [*self._changes, change * scale][-self._most :]
        moves, changes = np.stack(self._moves), np.stack(self._changes)
        wide = moves.astype(np.float64)
        self._sigma = np.float32(np.vdot(moves[-1], changes[-1]))
        self._inverse = np.linalg.pinv(wide @ wide.T, rcond=_ALIKE).astype(np.float32)
        self._basis, self._rest = moves, changes - self._sigma * moves
        return True

    def times(self, vector: Vector) -> Vector:
        if not self._moves:
            return np.zeros_like(vector)
        product: Vector = vector * self._sigma
        product += (self._inverse @ (self._basis @ vector)) @ self._rest
        return product
