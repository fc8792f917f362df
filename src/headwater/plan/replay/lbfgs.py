"""How a gradient changes with the weights, learnt from a few pairs: L-BFGS in compact form.

With pairs s (a move of the weights) and y (what it did to the gradient) as rows of S and Y, sigma = y.s /
s.s of the last one, D the diagonal of S Y' and L what lies below it,

    B v = sigma v - [Y; sigma S]' M^-1 [Y; sigma S] v,      M = [ -D   L'         ]
                                                                [  L   sigma S S' ]

(Byrd, Nocedal and Schnabel, Mathematical Programming 1994; used so by DeltaGrad, ICML 2020). M changes with a
pair only, so a product costs 4 m p multiplications.
"""

from __future__ import annotations

import numpy as np

from headwater.plan.replay.curvature import Vector

_FLAT = 1e-10
"""A pair with s.y below so many s.s says that there is no curvature, or one that turns over."""
_SINGULAR = 1e-12
"""Directions of M below this share of its largest are left out: pairs that say the same."""


class Lbfgs:
    """B, from the last `pairs` that it was told; 0 without any. A `Curvature`."""

    def __init__(self, pairs: int = 2) -> None:
        self._most = pairs
        self._moves: list[Vector] = []
        self._changes: list[Vector] = []

    def __len__(self) -> int:
        return len(self._moves)

    def observe(self, move: Vector, change: Vector) -> bool:
        square = float(np.vdot(move, move))
        # not (... > ...), so that what is no number is refused, too
        if not (np.isfinite(square) and square > 0 and float(np.vdot(move, change)) > _FLAT * square):
            return False
        # Of length 1, or M would hold squares of moves that are tiny early and large later.
        length = np.float32(1 / np.sqrt(square))
        self._moves = [*self._moves, move * length][-self._most :]
        self._changes = [*self._changes, change * length][-self._most :]
        self._factorise()
        return True

    def times(self, vector: Vector) -> Vector:
        if not self._moves:
            return np.zeros_like(vector)
        inner = self._inverse @ (self._basis @ vector)
        product: Vector = vector * self._sigma
        product -= inner @ self._basis
        return product

    def _factorise(self) -> None:
        moves, changes = np.stack(self._moves), np.stack(self._changes)
        wide = moves.astype(np.float64)
        both, squares = wide @ changes.T.astype(np.float64), wide @ wide.T
        sigma = float(both[-1, -1] / squares[-1, -1])
        below, diagonal = np.tril(both, -1), np.diag(np.diag(both))
        middle = np.block([[-diagonal, below.T], [below, sigma * squares]])
        self._sigma = np.float32(sigma)
        self._inverse = np.linalg.pinv(middle, rcond=_SINGULAR).astype(np.float32)
        self._basis = np.concatenate([changes, self._sigma * moves])
