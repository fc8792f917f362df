"""What a computed step tells of the approximate ones before it: what to put right, and what error is left.

A computed step shows by how much the prediction is off now. Right after the last computed step it was off
by nothing, so in between it is taken to have grown evenly; what that did to weights and velocity is a
multiple of the difference and can be taken back. Where the difference points elsewhere each time, as from
batch to batch, it says little about the steps before: only as much of it is put right as two in a row
agree. The rest adds up as a vector, so that what is off now this way and now that does not count twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headwater.plan.replay.curvature import Vector

_LEFT = 0.1
"""The share of what was put right that is still counted as an error."""
_ASTRAY = 0.5
"""A prediction that is off by this share of the change says nothing about those before it."""


@dataclass(frozen=True)
class Inertia:
    """How a force moves weights: momentum, and whether Nesterov's."""

    momentum: float = 0.0
    nesterov: bool = False

    @property
    def reach(self) -> float:
        """How far a force moves weights in the end, at a rate of 1."""
        return 1 / (1 - self.momentum)


@dataclass(frozen=True, eq=False)
class Correction:
    """What to add to weights and velocity: multiples of a difference of gradients."""

    difference: Vector
    place: float
    speed: float


class Hindsight:
    """Adds up what approximate steps did, and what computed ones say about that."""

    def __init__(self, inertia: Inertia, size: int, *, corrects: bool = True) -> None:
        self._inertia, self._corrects = inertia, corrects
        self._error = np.zeros(size, np.float32)
        self._last: Vector | None = None
        self._begin()

    @property
    def error(self) -> float:
        """How far the weights may be off by now."""
        return float(np.linalg.norm(self._error))

    def approximated(self, rate: float) -> None:
        """One more approximate step; its force was off by one part more than the one before it."""
        momentum = self._inertia.momentum
        self._gap += 1
        self._reach += self._gap * rate * self._inertia.reach
        self._speed = momentum * self._speed + self._gap
        stride = self._gap + momentum * self._speed if self._inertia.nesterov else self._speed
        self._place += rate * stride

    def computed(self, difference: Vector, change: float) -> Correction:
        """What a computed step found: a change of the gradient, of this length, less what was predicted."""
        agreement, parts = self._agree(difference, change), self._gap + 1
        left = (1 - agreement) + _LEFT * agreement
        self._error += difference * np.float32(left * self._reach / parts)
        found = Correction(difference, -agreement * self._place / parts, agreement * self._speed / parts)
        self._last = difference
        self._begin()
        return found

    def _begin(self) -> None:
        """After a computed step: how far a force that grows by 1 with each step has moved what since then."""
        self._gap, self._place, self._speed, self._reach = 0, 0.0, 0.0, 0.0

    def _agree(self, difference: Vector, change: float) -> float:
        """Cosine with the difference before it; 0 where there is none, or it points the other way.

        And 0 where it is as long as the change itself: such a prediction did not go astray evenly.
        """
        length = float(np.linalg.norm(difference))
        if self._last is None or not self._corrects or not 0 < length < _ASTRAY * change:
            return 0.0
        along = float(np.vdot(difference, self._last)) / length
        return max(0.0, along / max(float(np.linalg.norm(self._last)), 1e-30))
