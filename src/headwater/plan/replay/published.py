"""DeltaGrad's own rule: every step of a burn-in, then every so manyeth (ICML 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.errors import WrongUse
from headwater.plan.replay.curvature import Curvature, Fitted
from headwater.plan.replay.lbfgs import lbfgs
from headwater.plan.replay.spacing import Outlook


@dataclass(frozen=True)
class Published:
    """Compute the first `burn_in` steps and then one of `period`. The paper takes 5 and 10, or 10 and 10.

    What the errors are makes no difference. With a `period` of 1 every step is computed. Raises `WrongUse`
    for less.
    """

    period: int = 5
    burn_in: int = 10

    def __post_init__(self) -> None:
        if self.period < 1 or self.burn_in < 0:
            raise WrongUse(f"period={self.period} must be at least 1, burn_in={self.burn_in} at least 0")

    @property
    def informed(self) -> bool:
        return False

    @property
    def futile(self) -> bool:
        return False

    def begin(self, *, noisy: bool = False, convex: bool = True) -> Published:
        return self

    def curvature(self, *, noisy: bool, convex: bool) -> Curvature:
        return Fitted(lbfgs, pairs=2)

    def exact(self, step: int, news: float = 0.0) -> bool:
        return step <= self.burn_in or (step - self.burn_in) % self.period == 0

    def observe(self, outlook: Outlook) -> None:
        return None
