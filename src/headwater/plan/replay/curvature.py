"""What knows how a gradient changes with the weights, from pairs of a move and what it did."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from headwater.plan.replay.prior import Plain, Prior, Response, Vector

_FLAT = 1e-10
"""A pair with s.y below so many s.s says that there is no curvature, or one that turns over."""


class Curvature(Protocol):
    """An approximation B of a Hessian."""

    def assume(self, prior: Prior) -> None:
        """What is known without any pair, from now on."""
        ...

    def observe(self, move: Vector, change: Vector) -> bool:
        """Learn what a move of the weights did to the gradient; False for a pair that tells nothing."""
        ...

    def times(self, vector: Vector) -> Vector:
        """B times a vector; 0 without any pair."""
        ...

    def respond(self, vector: Vector, response: Response) -> Vector:
        """Each direction of a vector multiplied by the response to how much it bends, about."""
        ...


class Pairs:
    """The last so many pairs, of moves of length 1, and a prior that is scaled to fit the last one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._prior: Prior = Plain()
        self.moves: list[Vector] = []
        self.changes: list[Vector] = []
        self._bent: list[Vector] = []  # by the prior, not scaled
        self._scale = 1.0

    def __len__(self) -> int:
        return len(self.moves)

    def add(self, move: Vector, change: Vector) -> bool:
        """False for a pair that bends downwards, or is none."""
        square = float(np.vdot(move, move))
        # not (... > ...), so that what is no number is refused, too
        if not (np.isfinite(square) and square > 0 and float(np.vdot(move, change)) > _FLAT * square):
            return False
        # Of length 1, or products of moves that are tiny early and large later would be compared.
        length = np.float32(1 / np.sqrt(square))
        self.moves = [*self.moves, move * length][-self._most :]
        self.changes = [*self.changes, change * length][-self._most :]
        self._bent = [*self._bent, self._prior.times(self.moves[-1])][-self._most :]
        self._fit()
        return True

    def assume(self, prior: Prior) -> None:
        """Take another prior."""
        self._prior, self._bent = prior, [prior.times(move) for move in self.moves]
        self._fit()

    def base(self, vector: Vector) -> Vector:
        """The scaled prior times a vector."""
        product = self._prior.times(vector)
        product *= np.float32(self._scale)
        return product

    @property
    def bent(self) -> Vector:
        """The scaled prior times each move."""
        return np.stack(self._bent) * np.float32(self._scale)

    def respond(self, vector: Vector, response: Response) -> Vector:
        """By the scaled prior alone."""
        return self._prior.respond(vector, lambda bend: response(self._scale * bend))

    def _fit(self) -> None:
        if self.moves:
            bent = float(np.vdot(self.moves[-1], self._bent[-1]))
            self._scale = float(np.vdot(self.moves[-1], self.changes[-1])) / bent if bent > 0 else 1.0
