"""How a gradient changes with the weights, learnt from a few pairs: L-BFGS in compact form.

With pairs s (a move of the weights) and y (what it did to the gradient) as rows of S and Y, a first guess
A, D the diagonal of S Y' and L what lies below it,

    B = A - [A S'  Y'] [ S A S'   L ]^-1 [ S A ]
                       [ L'      -D ]    [ Y   ]

(Byrd, Nocedal and Schnabel, Mathematical Programming 1994; used so by DeltaGrad, ICML 2020, with a multiple
of one for A). The matrix in the middle changes with a pair only, so a product costs 4 m p multiplications
and one with A. B bends upwards whatever the pairs are.
"""

from __future__ import annotations

import numpy as np

from headwater.plan.replay.curvature import Pairs
from headwater.plan.replay.prior import Prior, Response, Vector

_SINGULAR = 1e-12
"""Directions of the inner matrix below this share of its largest are left out: pairs that say the same."""


class Lbfgs:
    """B, from the last `pairs` that it was told. A `Curvature`."""

    def __init__(self, pairs: int = 2) -> None:
        self._pairs = Pairs(pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def assume(self, prior: Prior) -> None:
        self._pairs.assume(prior)
        if len(self._pairs):
            self._factorise()

    def observe(self, move: Vector, change: Vector) -> bool:
        if not self._pairs.add(move, change):
            return False
        self._factorise()
        return True

    def times(self, vector: Vector) -> Vector:
        if not len(self._pairs):
            return np.zeros_like(vector)
        product = self._pairs.base(vector)
        product -= (self._inverse @ (self._basis @ vector)) @ self._basis
        return product

    def respond(self, vector: Vector, response: Response) -> Vector:
        return self._pairs.respond(vector, response)

    def _factorise(self) -> None:
        moves, changes = np.stack(self._pairs.moves), np.stack(self._pairs.changes)
        bent = self._pairs.bent
        wide = moves.astype(np.float64)
        both = wide @ changes.T.astype(np.float64)
        below = np.tril(both, -1)
        squares = wide @ bent.T.astype(np.float64)
        middle = np.block([[squares, below], [below.T, -np.diag(np.diag(both))]])
        self._inverse = np.linalg.pinv(middle, rcond=_SINGULAR).astype(np.float32)
        self._basis = np.concatenate([bent, changes])
