"""A replay under way, without its data: when to compute, what to predict, how far off it may be."""

from __future__ import annotations

import numpy as np

from headwater.plan.replay.curvature import Vector
from headwater.plan.replay.hindsight import Correction, Hindsight, Inertia
from headwater.plan.replay.policy import Policy


class Course:
    """Asked and told step by step, from the first that saw a change."""

    def __init__(self, policy: Policy, inertia: Inertia, *, size: int, noisy: bool) -> None:
        self._decider, self._curvature = policy.begin(), policy.curvature(noisy=noisy)
        self._corrects = policy.corrects
        self._hindsight = Hindsight(inertia, size, corrects=policy.corrects)
        self._step = 0

    @property
    def error(self) -> float:
        """How far the weights may be off by now; not a bound."""
        return self._hindsight.error

    @property
    def futile(self) -> bool:
        """Whether so many steps are computed that training from here on costs less than following."""
        return self._decider.futile

    def next_is_exact(self, *, last: bool = False) -> bool:
        """Whether the next step is to be computed; the very first costs nothing, and is not asked for.

        The `last` one is, where it can still put right what the approximate ones before it did.
        """
        self._step += 1
        return self._decider.exact(self._step) or (last and self._corrects)

    def predict(self, offset: Vector, rate: float) -> Vector:
        """How the gradient changes with this offset, for an approximate step at this rate."""
        self._hindsight.approximated(rate)
        return self._curvature.times(offset)

    def learn(self, offset: Vector, change: Vector) -> Correction:
        """What a computed step found; what to add to offset and velocity for approximate ones before it."""
        difference, length = change - self._curvature.times(offset), float(np.linalg.norm(change))
        found = self._hindsight.computed(difference, length)
        self._curvature.observe(offset, change)
        length = float(np.linalg.norm(offset))
        self._decider.observe(self.error / length if length > 0 else 0.0)
        return found
