"""Samples of high loss more often, by their rank.

Online Batch Selection (Loshchilov and Hutter, ICLR 2016 workshop). Kept: the chance of a sample falls
exponentially with the rank of its last loss, from the highest to the lowest by a factor, the pressure, which
itself falls exponentially over the epochs; nothing is corrected for. Changed: an epoch draws a share of the
samples without replacement, where the paper draws every batch with; ranks are taken at the start of an
epoch; equal losses have equal ranks; a sample of unknown loss always comes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.select.arithmetic import power
from headwater.select.choosing import check_explore, check_share
from headwater.select.lottery import draw_known
from headwater.select.ranks import by_rank
from headwater.select.samples import Samples
from headwater.select.selection import Choice


@dataclass(frozen=True)
class LossRank:
    """Draws a `share`, the highest loss `pressure` times as likely as the lowest, and at the end `end` times.

    Without a number of epochs the pressure stays. `corrected` lets samples count the inverse of their chance.
    """

    share: float = 0.5
    pressure: float = 100.0
    end: float = 1.0
    corrected: bool = False
    explore: float | None = None
    name = "loss_rank"
    needs = ("loss",)

    def __post_init__(self) -> None:
        check_share(self.share)
        check_explore(self.explore)
        if not 1 <= self.end <= self.pressure < np.inf:
            raise WrongUse(
                f"pressure is {self.pressure} and falls to {self.end}; it must fall, and stay at least 1"
            )

    def choose(self, samples: Samples) -> Choice:
        pressure = self._pressure(samples)

        def weigh(above: NDArray[np.float64]) -> NDArray[np.float64]:
            return power(1 / pressure, above)

        weights = by_rank(-samples.loss, "below", weigh)
        reason = f"by rank of loss, the highest {pressure:.3g} times as likely as the lowest"
        return draw_known(samples, weights, share=self.share, corrected=self.corrected, reason=reason)

    def _pressure(self, samples: Samples) -> float:
        if samples.epochs is None or samples.epochs < 2:
            return self.pressure
        left = max(0.0, 1 - samples.epoch / (samples.epochs - 1))
        return self.end * float(power(self.pressure / self.end, left))
