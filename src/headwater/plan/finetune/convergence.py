"""Into how many runs training may be divided before a run forgets what the one before it learnt.

Run r+1 begins with the weights of run r and sees other samples. With probability 1 - risk its loss begins
within

    drift = sqrt(log(2 P / risk) / (2 m))

of the loss with which run r ended (Hoeffding's inequality for a loss between 0 and 1 over m samples, for each
of P weights). Gradient descent at rate eta on a linear head comes back to a loss `target` within

    log((target + drift) / target) / eta

steps (NDPipe, ASPLOS'24; its bound for linear networks of depth N divides by c^(2(N-1)/N) too, which is 1 for
N = 1). Few samples in a run make a large drift, and short runs leave too few steps to recover from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headwater.errors import WrongUse

USUAL_RUNS = 3
"""What is taken where the bound allows it, in the paper too: of what N runs save, 1/N is left to be saved."""


@dataclass(frozen=True)
class Convergence:
    """What a run has to satisfy, for a head of so many `weights`.

    The rest are constants of the rule: `rate` is not the recipe's, which an optimiser of one's own lacks.
    """

    weights: int
    rate: float = 0.1
    risk: float = 0.05
    most_drift: float = 0.1
    target: float = 0.05

    def __post_init__(self) -> None:
        if self.weights < 1 or not 0 < self.risk < 1:
            raise WrongUse(f"weights={self.weights} must be at least 1, risk={self.risk} between 0 and 1")
        if min(self.rate, self.most_drift, self.target) <= 0:
            raise WrongUse(
                f"rate={self.rate}, most_drift={self.most_drift} and target={self.target} must be above 0"
            )

    def drift(self, samples: float) -> float:
        """How far from the last run's loss a run of so many samples may begin."""
        return math.sqrt(math.log(2 * self.weights / self.risk) / (2 * samples))

    def steps(self, samples: float) -> float:
        """Steps that such a run needs to come back to the target."""
        return math.log1p(self.drift(samples) / self.target) / self.rate

    def allows(self, runs: int, *, samples: int, steps: float) -> bool:
        """Whether so many runs may share the samples, and all steps of training; a single one always may."""
        if runs == 1:
            return True
        each = samples / runs
        return each >= 1 and self.drift(each) <= self.most_drift and self.steps(each) <= steps / runs

    def most_runs(self, *, samples: int, steps: float, limit: int = USUAL_RUNS) -> int:
        """The most runs that are allowed, up to `limit`."""
        allowed = [n for n in range(1, limit + 1) if self.allows(n, samples=samples, steps=steps)]
        return max(allowed, default=1)
