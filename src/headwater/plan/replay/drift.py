"""How far a replay may be off by now, from what computed steps say about the approximate ones before them.

A computed step shows by how much the prediction is off. Right after the last computed step it was off by
nothing, so in between it is taken to have grown evenly. Gradient descent moves weights by that, and pulls
them back the more, the more the loss bends in a direction. Errors add up as a vector, so that what is off
now this way and now that does not count twice. It is an estimate, and no bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headwater.plan.replay.apart import Apart, Numbers, Unparted, Vector
from headwater.plan.replay.prior import Prior
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

    @property
    def most_pull(self) -> float:
        """By how much a direction gets smaller in a step at most, however it bends and whatever the rate.

        With momentum, one that bends enough swings, and a swing gets smaller by the root of it a step.
        """
        return -0.5 * math.log(self.momentum) if self.momentum else math.inf


class Pulling(Protocol):
    """What pulls errors back: so many times what a prior says."""

    @property
    def prior(self) -> Prior: ...

    @property
    def scale(self) -> float: ...


@dataclass(frozen=True, eq=False)
class Left:
    """A prior that is taken as it is."""

    prior: Prior
    scale: float = 1.0


class Drift:
    """Adds up what approximate steps may have done."""

    def __init__(self, inertia: Inertia, size: int, *, noisy: bool) -> None:
        self._inertia, self._factor = inertia, _NOISE if noisy else 1.0
        self._error: Apart = Unparted(np.zeros(size, np.float32))
        self._fresh: Apart = self._error
        self._reaches: list[float] = []

    @property
    def length(self) -> float:
        """How far the weights may be off by now."""
        return self._factor * math.sqrt(float(self._error.squares.sum()))

    def approximated(self, rate: float) -> None:
        """One more approximate step, at this rate."""
        self._reaches.append(rate * self._inertia.reach)

    def computed(self, rate: float, difference: Vector, curvature: Pulling) -> None:
        """What a computed step found: the change of the gradient less what was predicted."""
        gap, here = np.array(self._reaches), rate * self._inertia.reach
        self._reaches = []
        pulls = self._pulls(self._error, np.append(gap, here), curvature)
        self._error = self._error.times(np.exp(-pulls.sum(1)))
        self._fresh = curvature.prior.take_apart(difference)
        if len(gap):
            share = gap * np.arange(1, len(gap) + 1) / (len(gap) + 1)
            pulls = self._pulls(self._fresh, gap, curvature)
            # From each step to here: how far errors have been pulled back since.
            since = np.cumsum(pulls[:, ::-1], axis=1)[:, ::-1] - pulls
            self._error = self._fresh.times(np.exp(-since) @ share).plus(self._error)

    def trained(self, rates: Numbers, curvature: Pulling) -> None:
        """Steps of training at these rates, which are off by nothing."""
        self._error = curvature.prior.take_apart(self._error.whole())
        kinds, counts = np.unique(rates, return_counts=True)
        pulls = self._pulls(self._error, kinds * self._inertia.reach, curvature)
        self._error = self._error.times(np.exp(-(pulls @ counts)))

    def look_ahead(self, rate: float, ahead: float, curvature: Pulling) -> Outlook:
        """What the last computed step, at this rate, says of those after it, whose rates have this sum."""
        reach, fresh, error = self._inertia.reach, self._fresh, self._error
        steps, now = ahead / rate if rate > 0 else 0.0, np.array([rate * reach])
        left = float(error.squares @ np.exp(-2 * steps * self._pulls(error, now, curvature)[:, 0]))
        # A prediction is off by nothing right after a computed step, so by half of it in the mean.
        factor = (self._factor * rate * reach / 2) ** 2
        return Outlook(
            left=self._factor * math.sqrt(left),
            fresh=factor * fresh.squares,
            pulls=self._pulls(fresh, now, curvature)[:, 0],
            steps=steps,
        )

    def _pulls(self, apart: Apart, reaches: Numbers, curvature: Pulling) -> Numbers:
        """The share by which each group of directions gets smaller, in steps of these reaches."""
        pulls = np.multiply.outer(self._bends(apart, curvature), reaches)
        found: Numbers = np.minimum(pulls, self._inertia.most_pull, out=pulls)
        return found

    def _bends(self, apart: Apart, curvature: Pulling) -> Numbers:
        found: Numbers = _PULL * curvature.scale * apart.bends + self._inertia.decay
        return found
