"""How far a replay may be off by now, from what computed steps say about the approximate ones before them.

A computed step shows by how much the prediction is off. Right after the last computed step it was off by
nothing, so in between it is taken to have grown evenly. Gradient descent moves weights by that, and pulls
them back the more, the more the loss bends in a direction. Errors add up as a vector, so that what is off
now this way and now that does not count twice. It is an estimate, and no bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.plan.replay.curvature import Curvature
from headwater.plan.replay.prior import Numbers, Vector

_PULL = 0.3
"""The share of what is known to bend counted on to pull errors back; L2 is known, and counts in full."""
_NOISE = 2.5
"""What is seen at a step is the error of its batch; those of the steps between are others, and add to it."""


@dataclass(frozen=True)
class Inertia:
    """How a force moves weights: momentum, and the mean L2."""

    momentum: float = 0.0
    decay: float = 0.0

    @property
    def reach(self) -> float:
        """How far a force moves weights in the end, at a rate of 1."""
        return 1 / (1 - self.momentum)


class Drift:
    """Adds up what approximate steps may have done."""

    def __init__(self, inertia: Inertia, size: int, *, noisy: bool) -> None:
        self._inertia, self._factor = inertia, _NOISE if noisy else 1.0
        self._error = np.zeros(size, np.float32)
        self._reaches: list[float] = []

    @property
    def length(self) -> float:
        """How far the weights may be off by now."""
        return self._factor * float(np.linalg.norm(self._error))

    def approximated(self, rate: float) -> None:
        """One more approximate step, at this rate."""
        self._reaches.append(rate * self._inertia.reach)

    def computed(self, rate: float, difference: Vector, curvature: Curvature) -> None:
        """What a computed step found: the change of the gradient less what was predicted."""
        gap = np.array(self._reaches)
        self._reaches = []
        # From each step to here: how far weights have gone since.
        since = np.cumsum(gap[::-1])[::-1] - gap
        self._pull_back(float(gap.sum()) + rate * self._inertia.reach, curvature)
        if len(gap):
            share = gap * np.arange(1, len(gap) + 1) / (len(gap) + 1)
            self._error += curvature.respond(difference, lambda bend: self._pulled(bend, since) @ share)

    def trained(self, rates: float, curvature: Curvature) -> None:
        """Steps of training at rates of this sum, which are off by nothing."""
        self._pull_back(rates * self._inertia.reach, curvature)

    def left_after(self, rates: float, curvature: Curvature) -> float:
        """How far the weights may be off after steps of training at rates of this sum, were they made."""
        return self._factor * float(np.linalg.norm(self._left(rates * self._inertia.reach, curvature)))

    def _pull_back(self, reach: float, curvature: Curvature) -> None:
        self._error = self._left(reach, curvature)

    def _left(self, reach: float, curvature: Curvature) -> Vector:
        whole = np.array([reach])
        return curvature.respond(self._error, lambda bend: self._pulled(bend, whole)[..., 0])

    def _pulled(self, bend: Numbers, reaches: NDArray[np.float64]) -> Numbers:
        """What is left of an error after each reach, by how much its direction bends."""
        pull: Numbers = np.exp(-np.multiply.outer(_PULL * bend + self._inertia.decay, reaches))
        return pull
