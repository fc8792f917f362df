"""Samples drawn without replacement, each with a chance in proportion to its weight.

Priority sampling (Duffield, Lund, Thorup 2007): the lowest quotients of a draw and a weight. Sums that count
every sample as the inverse of its chance are right in expectation. It takes divisions only, so it comes to
the same samples on every CPU, which keys of a logarithm (Efraimidis and Spirakis) do not promise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.select.choosing import everything
from headwater.select.samples import Ints, Samples
from headwater.select.selection import Choice

Floats = NDArray[np.floating[Any]]


def draw_by_weight(weights: Floats, draws: NDArray[np.float64], count: int) -> tuple[Ints, Floats]:
    """Places of that many samples, which ascend, and the chance of each; `weights` are above 0.

    An infinite weight is always drawn. `draws` are uniform from 0 to 1.
    """
    if count >= len(weights):
        return np.arange(len(weights), dtype=np.int64), np.ones(len(weights), np.float32)
    keys = draws / weights
    limit = np.partition(keys, count)[count]
    places = np.flatnonzero(keys < limit)
    return places, np.minimum(1, weights[places] * limit)


def draw_known(samples: Samples, weights: Floats, *, share: float, corrected: bool, reason: str) -> Choice:
    """A share of the samples whose weight is a number, drawn by it, and all of which nothing is known."""
    unknown = np.isnan(weights)
    told = len(weights) - int(np.count_nonzero(unknown))
    if not told:
        return Choice(everything(samples), "everything: nothing is known of any sample")
    count = len(weights) - told + math.ceil(told * share - 1e-9)
    places, chances = draw_by_weight(np.where(unknown, np.inf, weights), samples.draw(), count)
    said = f"{share:.0%} {reason}"
    if told < len(weights):
        said += f", and {len(weights) - told:,} of which nothing is known"
    return Choice(places, said, chances=chances if corrected else None)
