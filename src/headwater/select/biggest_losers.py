"""Samples of high loss more often, each by a coin of its own.

Selective backpropagation, the biggest losers (Jiang et al. 2019). Kept: the chance of a sample is the share
of losses up to its own, to the power of `beta`; nothing is corrected for. Changed: the losses are the last
that were reported of all samples, where the paper has a forward pass of every sample and a window of recent
losses: what is left out is not even read; a sample of unknown loss always comes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.select.arithmetic import power
from headwater.select.choosing import check_explore, everything
from headwater.select.ranks import by_rank
from headwater.select.samples import Samples
from headwater.select.selection import Choice


@dataclass(frozen=True)
class BiggestLosers:
    """About 1 / (1 + `beta`) of the samples. `corrected` lets them count the inverse of their chance."""

    beta: float = 1.0
    corrected: bool = False
    explore: float | None = None
    name = "biggest_losers"
    needs = ("loss",)

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 64:
            raise WrongUse(f"beta is {self.beta}; it must be from 0 to 64")
        check_explore(self.explore)

    def choose(self, samples: Samples) -> Choice:
        def toss(up_to: NDArray[np.float64]) -> NDArray[np.float64]:
            return power(up_to, self.beta)

        chances = by_rank(samples.loss, "up_to", toss)
        unknown = np.isnan(chances)
        if unknown.all():
            return Choice(everything(samples), "everything: no loss is known")
        places = np.flatnonzero(unknown | (samples.draw() < chances))
        reason = f"with a chance of the share of losses up to its own, to the power of {self.beta:g}"
        if not self.corrected:
            return Choice(places, reason)
        return Choice(places, reason, chances=np.where(unknown, np.float32(1), chances)[places])
