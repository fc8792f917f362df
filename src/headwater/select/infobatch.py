"""Fewer of the samples that are learned already, each of which counts for more.

InfoBatch (ICLR 2024). Kept: each epoch, of the samples whose last loss is below the mean, a random `ratio`
is left out, and the others of them count 1 / (1 - ratio), so that sums are right in expectation; the last
eighth of the epochs is whole. Changed: weights have mean 1 as everywhere here, so leaving out samples does
not lengthen steps; a sample of unknown loss stays, where the published code gives it a loss of 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headwater.errors import WrongUse
from headwater.select.choosing import check_part, everything, known
from headwater.select.samples import Marks, Samples
from headwater.select.selection import Choice


@dataclass(frozen=True)
class InfoBatch:
    """Leaves out a `ratio` of the samples with a loss below the mean."""

    ratio: float = 0.5
    explore: float = 0.0
    name = "infobatch"
    needs = ("loss",)

    def __post_init__(self) -> None:
        if not 0 <= self.ratio < 1:
            raise WrongUse(f"ratio is {self.ratio}; it must be at least 0 and below 1")
        check_part("explore", self.explore)

    def choose(self, samples: Samples) -> Choice:
        if samples.near_end:
            return Choice(everything(samples), "everything: the last eighth of the epochs is whole")
        below, mean = _below_mean(samples)
        if not below.any():
            return Choice(everything(samples), "everything: no loss is known to be below the mean")
        places = np.flatnonzero(~below | (samples.draw() >= self.ratio))
        chances = np.where(below[places], np.float32(1 - self.ratio), np.float32(1))
        share = np.count_nonzero(below) / len(below)
        reason = f"{1 - self.ratio:.0%} of the {share:.0%} with a loss below the mean, {mean:.3g}; all others"
        return Choice(places, reason, chances=chances)


def _below_mean(samples: Samples) -> tuple[Marks, np.float32]:
    """Which losses are below their mean, and the mean.

    Summed in 64 bits and rounded as they are: in 32 bits it can lie above losses that are all equal.
    """
    told = known(samples, "loss")
    if not told.any():
        return told, np.float32(np.nan)
    mean = np.float32(np.mean(samples.loss, dtype=np.float64, where=told))
    return told & (samples.loss < mean), mean
