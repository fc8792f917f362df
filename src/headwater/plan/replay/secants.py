"""How a gradient changes with the weights, from what it did along the last few moves: multi-secant form.

With unit moves S and their changes Y as rows, and a first guess A, a vector is taken apart into what lies
in the span of S, of which the change is known, and a rest, of which A is asked:

    B v = A v + (Y - S A)' (S S')^+ S v

Where a run is followed, v moves slowly, so nearly all of it lies in that span: the curve of (v, y) is
extrapolated to the order of the number of pairs, as in Anderson's mixing (JACM 1965). L-BFGS asks for
symmetry as well, and keeps less of the pairs before the last.
"""

from __future__ import annotations

import numpy as np

from headwater.plan.replay.curvature import Pairs
from headwater.plan.replay.prior import Prior, Response, Vector

_ALIKE = 1e-6
"""Directions of S S' below this share of its largest are left out: there moves differ by little more than
their rounding, which would be blown up."""


class Secants:
    """B, from the last `pairs` that it was told. A `Curvature`."""

    def __init__(self, pairs: int = 3) -> None:
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
        product += (self._inverse @ (self._basis @ vector)) @ self._rest
        return product

    def respond(self, vector: Vector, response: Response) -> Vector:
        return self._pairs.respond(vector, response)

    def _factorise(self) -> None:
        self._basis = np.stack(self._pairs.moves)
        wide = self._basis.astype(np.float64)
        self._inverse = np.linalg.pinv(wide @ wide.T, rcond=_ALIKE).astype(np.float32)
        self._rest = np.stack(self._pairs.changes) - self._pairs.bent
