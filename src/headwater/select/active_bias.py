"""Samples more often of which the model is of two minds.

Active Bias (Chang, Learned-Miller, McCallum, NIPS 2017), sampled by prediction variance. Kept: the weight of
a sample is the standard deviation of its target's probability over the reports so far, with their few number
allowed for, and a constant; nothing is corrected for. Changed: the constant is the mean of the deviations;
an epoch draws a share of the samples without replacement; a sample that was not reported twice always comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.select.choosing import check_explore, check_share, known
from headwater.select.lottery import draw_known
from headwater.select.samples import Samples
from headwater.select.selection import Choice


@dataclass(frozen=True)
class ActiveBias:
    """Draws a `share` by how much the probability of the target varies.

    `corrected` lets samples count the inverse of their chance.
    """

    share: float = 0.5
    corrected: bool = False
    explore: float | None = None
    name = "active_bias"
    needs = ("deviation",)

    def __post_init__(self) -> None:
        check_share(self.share)
        check_explore(self.explore)

    def choose(self, samples: Samples) -> Choice:
        return draw_known(
            samples,
            _weigh(samples),
            share=self.share,
            corrected=self.corrected,
            reason="by how much the probability of the target varies",
        )


def _weigh(samples: Samples) -> NDArray[np.floating[Any]]:
    """The deviation, more of it where few reports tell it, and the mean of all; NaN for the unknown."""
    told = known(samples, "deviation")
    if not told.any():
        return samples.deviation
    variance = np.square(samples.deviation)
    spread = np.sqrt(variance + np.square(variance) / np.maximum(samples.seen - 1, 1))
    mean = np.float32(np.mean(spread, dtype=np.float64, where=told))
    return spread + mean if mean else np.where(told, np.float32(1), np.float32(np.nan))
