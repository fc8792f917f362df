"""As few computed steps as a tolerance allows: far apart while the error is small, closer when it grows."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.errors import WrongUse
from headwater.plan.replay.curvature import Curvature, Fitted
from headwater.plan.replay.lbfgs import lbfgs
from headwater.plan.replay.secants import secants

_GROW, _SHRINK = 1.3, 0.5
_ROOM, _FULL = 0.7, 0.85
"""Shares of the tolerance: below the first the period grows, above the other it shrinks. What is added
until the next computed step needs the rest."""
_NEWS = 0.25
"""A sample that leaves a batch kicks the offset: where so large a share of it is new, a step is computed."""
_PATIENCE = 16
"""So many steps in a row are computed before approximating is given up."""


@dataclass(frozen=True)
class Adaptive:
    """Keep the estimated error below `tolerance`, a share of how far the weights move.

    The first `burn_in` steps are computed, and at least one of `longest`. Raises `WrongUse` for what cannot
    be.
    """

    tolerance: float = 0.01
    burn_in: int = 8
    longest: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1 or self.burn_in < 0 or self.longest < 1:
            raise WrongUse(
                f"tolerance={self.tolerance} must be between 0 and 1, burn_in={self.burn_in} at least 0, "
                f"longest={self.longest} at least 1"
            )

    @property
    def informed(self) -> bool:
        return True

    def begin(self) -> _Spacing:
        return _Spacing(self)

    def curvature(self, *, noisy: bool, convex: bool) -> Curvature:
        if not convex:
            return Fitted(lbfgs, pairs=2)  # which bends upwards, whatever it is told
        return Fitted(secants, pairs=2 if noisy else 3)


class _Spacing:
    """The period that stands, and when a step was computed last."""

    def __init__(self, policy: Adaptive) -> None:
        self._policy = policy
        self._period, self._last, self._now = min(2, policy.longest), 0, 0
        self._in_a_row = 0

    @property
    def futile(self) -> bool:
        return self._in_a_row > _PATIENCE

    def exact(self, step: int, news: float = 0.0) -> bool:
        self._now = step
        if step > self._policy.burn_in and step - self._last < self._period and news < _NEWS:
            return False
        late = step > self._policy.burn_in and step - self._last == 1
        self._in_a_row = self._in_a_row + 1 if late else 0
        self._last = step
        return True

    def observe(self, error: float) -> None:
        if self._now <= self._policy.burn_in:
            return
        if error > _FULL * self._policy.tolerance:
            self._period = max(1, int(self._period * _SHRINK))
        elif error < _ROOM * self._policy.tolerance:
            longer = max(self._period + 1, int(self._period * _GROW))
            self._period = min(self._policy.longest, longer)
