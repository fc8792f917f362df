"""As few computed steps as a tolerance allows: far apart where errors will be pulled back, closer later."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headwater.errors import WrongUse
from headwater.plan.replay.apart import Numbers
from headwater.plan.replay.curvature import Curvature, Fitted
from headwater.plan.replay.lbfgs import lbfgs
from headwater.plan.replay.secants import secants
from headwater.plan.replay.spacing import Outlook, best_period

_GROW = 1.3
_AIM = 0.85
"""The share of the tolerance that is aimed at; what comes unexpectedly needs the rest."""
_LONGER = 2
"""With batches a period may be so many times as long: what is off is noise, and does not grow with it."""
_HEARD = 0.2
"""What the last computed step counts for in how far predictions are off, against all before it."""
_NEWS = 0.25
"""A sample that leaves a batch kicks the offset: where so large a share of it is new, a step is computed.
That is for the longest period; a shorter one says that as much less may be new."""
_PATIENCE = 16
"""So many steps in a row are computed before approximating is given up."""


@dataclass(frozen=True)
class Adaptive:
    """Keep the estimated error below `tolerance`, a share of how far the weights move.

    The first `burn_in` steps are computed, and at least one of `longest`, of twice as many where a convex
    loss has batches. Raises `WrongUse` for what cannot
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

    def begin(self, *, noisy: bool = False, convex: bool = True) -> _Spacing:
        return _Spacing(self, self.longest * (_LONGER if noisy and convex else 1))

    def curvature(self, *, noisy: bool, convex: bool) -> Curvature:
        if not convex:
            return Fitted(lbfgs, pairs=2)  # which bends upwards, whatever it is told
        return Fitted(secants, pairs=2 if noisy else 3)


class _Spacing:
    """The period that stands, and when a step was computed last."""

    def __init__(self, policy: Adaptive, longest: int) -> None:
        self._policy, self._longest = policy, longest
        self._period, self._last, self._now = min(2, policy.longest), 0, 0
        self._in_a_row = 0
        self._fresh: Numbers | None = None

    @property
    def futile(self) -> bool:
        return self._in_a_row > _PATIENCE

    def exact(self, step: int, news: float = 0.0) -> bool:
        self._now = step
        if step > self._policy.burn_in and step - self._last < self._period and news < self._news:
            return False
        late = step > self._policy.burn_in and step - self._last == 1
        self._in_a_row = self._in_a_row + 1 if late else 0
        self._last = step
        return True

    def observe(self, outlook: Outlook) -> None:
        policy, before = self._policy, self._fresh
        # Of the burn-in the last step counts alone: in the first ones predictions have nothing to go by.
        known = self._now > policy.burn_in and before is not None and len(before) == len(outlook.fresh)
        self._fresh = outlook.fresh
        if before is not None and known:
            self._fresh = before + _HEARD * (outlook.fresh - before)
        if self._now > policy.burn_in:
            best = best_period(replace(outlook, fresh=self._fresh), _AIM * policy.tolerance, self._longest)
            self._period = min(best, max(self._period + 1, int(self._period * _GROW)))

    @property
    def _news(self) -> float:
        return _NEWS * min(1.0, self._period / self._policy.longest)
