"""How far a replay may be off by now, from what computed steps say about the approximate ones before them.

A computed step shows by how much the prediction is off. Right after the last computed step it was off by
nothing, so in between it is taken to have grown evenly. Gradient descent moves weights by that, and pulls
them back the more, the more the loss bends in a direction. Errors add up as a vector, so that what is off
now this way and now that does not count twice. It is an estimate, and no bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headwater.plan.replay.apart import Apart, Numbers, Unparted, Vector
from headwater.plan.replay.curvature import Curvature
from headwater.plan.replay.spacing import Outlook

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

    def most_pull(self, rate: float) -> float:
        """By how much a direction gets smaller at most, for each unit of reach, however it bends.

        With momentum, one that bends enough swings, and a swing gets smaller by the root of it a step.
        """
        if not self.momentum or not rate:
            return math.inf
        return -0.5 * math.log(self.momentum) / (rate * self.reach)


class Drift:
    """Adds up what approximate steps may have done."""

    def __init__(self, inertia: Inertia, size: int, *, noisy: bool) -> None:
        self._inertia, self._factor = inertia, _NOISE if noisy else 1.0
        self._error: Apart = Unparted(np.zeros(size, np.float32))
        self._fresh: Apart = self._error
        self._reaches: list[float] = []
        self._rate = 0.0

    @property
    def length(self) -> float:
        """How far the weights may be off by now."""
        return self._factor * math.sqrt(float(self._error.squares.sum()))

    def approximated(self, rate: float) -> None:
        """One more approximate step, at this rate."""
        self._reaches.append(rate * self._inertia.reach)

    def computed(self, rate: float, difference: Vector, curvature: Curvature) -> None:
        """What a computed step found: the change of the gradient less what was predicted."""
        gap, self._rate = np.array(self._reaches), rate
        self._reaches = []
        # From each step to here: how far weights have gone since.
        since = np.cumsum(gap[::-1])[::-1] - gap
        self._pull_back(float(gap.sum()) + rate * self._inertia.reach, curvature)
        self._fresh = curvature.prior.take_apart(difference)
        if len(gap):
            share = gap * np.arange(1, len(gap) + 1) / (len(gap) + 1)
            pulled = np.exp(np.multiply.outer(-self._pulls(self._fresh, curvature), since))
            self._error = self._fresh.times(pulled @ share).plus(self._error)

    def trained(self, rates: float, curvature: Curvature) -> None:
        """Steps of training at rates of this sum, which are off by nothing."""
        self._pull_back(rates * self._inertia.reach, curvature)

    def look_ahead(self, rate: float, ahead: float, curvature: Curvature) -> Outlook:
        """What the last computed step, at this rate, says of those after it, whose rates have this sum."""
        reach, fresh, error = self._inertia.reach, self._fresh, self._error
        left = float(error.squares @ np.exp(-2 * ahead * reach * self._pulls(error, curvature)))
        # A prediction is off by nothing right after a computed step, so by half of it in the mean.
        factor = (self._factor * rate * reach / 2) ** 2
        return Outlook(
            left=self._factor * math.sqrt(left),
            fresh=factor * fresh.squares,
            pulls=rate * reach * self._pulls(fresh, curvature),
            steps=ahead / rate if rate > 0 else 0.0,
        )

    def _pull_back(self, reach: float, curvature: Curvature) -> None:
        self._error = self._error.times(np.exp(-reach * self._pulls(self._error, curvature)))

    def _pulls(self, apart: Apart, curvature: Curvature) -> Numbers:
        """The share by which each group of directions gets smaller, for each unit of reach."""
        pulls: Numbers = _PULL * curvature.scale * apart.bends + self._inertia.decay
        return np.minimum(pulls, self._inertia.most_pull(self._rate))
