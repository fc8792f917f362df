"""What knows how a gradient changes with the weights, from pairs of a move and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.plan.replay.apart import Vector
from headwater.plan.replay.prior import Plain, Prior

_ALIKE = 1e-6
"""Directions of S S' below this share of its largest are left out: there moves differ by little more than
their rounding, which would be blown up."""
_FLAT = 1e-10
"""A pair with s.y below so many s.s says that there is no curvature, or one that turns over."""


class Curvature(Protocol):
    """An approximation B of a Hessian."""

    def assume(self, prior: Prior) -> None:
        """What is known without any pair, from now on."""
        ...

    def observe(self, move: Vector, change: Vector, *, bent: Vector | None = None) -> bool:
        """Learn what a move of the weights did to the gradient; False for a pair that tells nothing.

        `bent` is what the prior makes of the move, where that is known.
        """
        ...

    def times(self, vector: Vector, *, bent: Vector | None = None) -> Vector:
        """B times a vector; 0 without any pair. `bent` is what the prior makes of it, where that is known."""
        ...

    @property
    def prior(self) -> Prior:
        """What is known without any pair."""
        ...

    @property
    def scale(self) -> float:
        """How many times as much as the prior says all bends, about."""
        ...

    def news(self, vector: Vector) -> float:
        """The share of a vector that lies in no move of any pair, from 0 to 1."""
        ...


@dataclass(frozen=True, eq=False)
class Correction:
    """What pairs add to the product of a prior: `outwards' inwards v`, two thin products."""

    inwards: Vector
    outwards: Vector

    def of(self, vector: Vector) -> Vector:
        inside: Vector = self.inwards @ vector
        added: Vector = inside @ self.outwards
        return added


@dataclass(frozen=True, eq=False)
class Known:
    """Moves of length 1, what each did, and what the prior has for it, as rows; the last is last."""

    moves: Vector
    changes: Vector
    bent: Vector

    @cached_property
    def inverse(self) -> Vector:
        """Of the products of all moves with each other."""
        wide = self.moves.astype(np.float64)
        # For so few rows a product of matrices takes several times as long as all products of vectors.
        products = np.array([[np.vdot(one, other) for other in wide] for one in wide])
        return invert(products, _ALIKE).astype(np.float32)


class Form(Protocol):
    """How pairs correct a prior."""

    def __call__(self, known: Known) -> Correction: ...


class Fitted:
    """B, from a prior and the last `pairs` that it was told, in a form. A `Curvature`."""

    def __init__(self, form: Form, pairs: int) -> None:
        self.form = form
        self._pairs = Pairs(pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def assume(self, prior: Prior) -> None:
        self._pairs.assume(prior)
        if len(self._pairs):
            self._correct()

    def observe(self, move: Vector, change: Vector, *, bent: Vector | None = None) -> bool:
        if not self._pairs.add(move, change, bent):
            return False
        self._correct()
        return True

    def times(self, vector: Vector, *, bent: Vector | None = None) -> Vector:
        if not len(self._pairs):
            return np.zeros_like(vector)
        product = self.prior.times(vector) if bent is None else bent.copy()
        product *= np.float32(self.scale)
        product += self._correction.of(vector)
        return product

    @property
    def prior(self) -> Prior:
        return self._pairs.prior

    @property
    def scale(self) -> float:
        return self._pairs.scale

    def news(self, vector: Vector) -> float:
        square = float(np.vdot(vector, vector))
        if not len(self._pairs) or not square:
            return 1.0
        along = self._known.moves @ vector
        return float(np.sqrt(max(0.0, 1 - float(along @ self._known.inverse @ along) / square)))

    def _correct(self) -> None:
        self._known = self._pairs.known
        self._correction = self.form(self._known)


def invert(symmetric: NDArray[np.float64], least: float) -> NDArray[np.float64]:
    """The inverse, without the directions that have less than this share of what the largest has."""
    values, turn = np.linalg.eigh(symmetric)
    kept = np.abs(values) > least * np.abs(values).max()
    found: NDArray[np.float64] = (turn[:, kept] / values[kept]) @ turn[:, kept].T
    return found


class Pairs:
    """The last so many pairs, of moves of length 1, and a prior that is scaled to fit the last one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.prior: Prior = Plain()
        self.moves: list[Vector] = []
        self.changes: list[Vector] = []
        self._bent: list[Vector] = []  # by the prior, not scaled
        self.scale = 1.0

    def __len__(self) -> int:
        return len(self.moves)

    def add(self, move: Vector, change: Vector, bent: Vector | None = None) -> bool:
        """False for a pair that bends downwards, or is none."""
        square = float(np.vdot(move, move))
        # not (... > ...), so that what is no number is refused, too
        if not (np.isfinite(square) and square > 0 and float(np.vdot(move, change)) > _FLAT * square):
            return False
        # Of length 1, or products of moves that are tiny early and large later would be compared.
        length = np.float32(1 / np.sqrt(square))
        self.moves = [*self.moves, move * length][-self._most :]
        self.changes = [*self.changes, change * length][-self._most :]
        bent = self.prior.times(move) if bent is None else bent
        self._bent = [*self._bent, bent * length][-self._most :]
        self._fit()
        return True

    def assume(self, prior: Prior) -> None:
        """Take another prior."""
        self.prior, self._bent = prior, [prior.times(move) for move in self.moves]
        self._fit()

    @property
    def known(self) -> Known:
        """All pairs, and the scaled prior times each move."""
        bent = np.stack(self._bent)
        bent *= np.float32(self.scale)
        return Known(np.stack(self.moves), np.stack(self.changes), bent)

    def _fit(self) -> None:
        if self.moves:
            bent = float(np.vdot(self.moves[-1], self._bent[-1]))
            self.scale = float(np.vdot(self.moves[-1], self.changes[-1])) / bent if bent > 0 else 1.0
