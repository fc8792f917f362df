"""A replay under way, without its data: when to compute, what to predict, how far off it may be."""

from __future__ import annotations

import numpy as np

from headwater.plan.replay.apart import Numbers, Vector
from headwater.plan.replay.drift import Drift, Inertia, Left, Pulling
from headwater.plan.replay.policy import Policy
from headwater.plan.replay.prior import Prior


class Course:
    """Asked and told step by step, from the first that saw a change.

    `noisy` says that each step has a batch of its own, `convex` that the loss bends nowhere downwards.
    """

    def __init__(
        self, policy: Policy, inertia: Inertia, *, size: int, noisy: bool, convex: bool = True
    ) -> None:
        self._decider = policy.begin(noisy=noisy, convex=convex)
        self._curvature = policy.curvature(noisy=noisy, convex=convex)
        self._informed, self._wary = policy.informed, policy.informed and convex
        self._drift = Drift(inertia, size, noisy=noisy)
        self._left: Prior | None = None
        self._step = 0

    @property
    def error(self) -> float:
        """How far the weights may be off by now; an estimate, and no bound."""
        return self._drift.length

    @property
    def futile(self) -> bool:
        """Whether so many steps are computed that approximating from here on does not pay."""
        return self._decider.futile

    @property
    def informed(self) -> bool:
        """Whether `assume` is of any use."""
        return self._informed

    def assume(self, prior: Prior, *, left: Prior | None = None) -> None:
        """What is known of the Hessian without any computed step.

        `left` is that of the samples that stay, at the weights of the new run, where it is known to be
        another: that is what pulls errors back.
        """
        self._curvature.assume(prior)
        self._left = left

    @property
    def _pulling(self) -> Pulling:
        return self._curvature if self._left is None else Left(self._left)

    def next_is_exact(self, offset: Vector) -> bool:
        """Whether the step at this offset is to be computed; the first costs nothing, and is not asked of."""
        self._step += 1
        return self._decider.exact(self._step, self._curvature.news(offset) if self._wary else 0.0)

    def predict(self, offset: Vector, rate: float) -> Vector:
        """How the gradient changes with this offset, for an approximate step at this rate."""
        self._drift.approximated(rate)
        return self._curvature.times(offset)

    def learn(self, offset: Vector, change: Vector, rate: float, *, ahead: float = 0.0) -> None:
        """What a computed step found: how the gradient changes with this offset.

        `ahead` is the sum of the rates of the steps after it. What counts is the error in the end, and
        steps to come pull back what is off now.
        """
        bent = self._curvature.prior.times(offset)
        self._drift.computed(rate, change - self._curvature.times(offset, bent=bent), self._pulling)
        self._curvature.observe(offset, change, bent=bent)
        length = float(np.linalg.norm(offset))
        if length > 0:
            outlook = self._drift.look_ahead(rate, ahead, self._pulling)
            self._decider.observe(outlook.over(length))

    def train(self, rates: Numbers) -> None:
        """Steps were trained and not followed, at these rates: what was off before is pulled back."""
        self._drift.trained(rates, self._pulling)
