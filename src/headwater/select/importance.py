"""How much a sample matters to training, and what it costs to load, in one number of IOWA's.

Kept: how surprising the label is; where loading is the bottleneck also the margin, and the inverse of a
mixture of seconds and bytes. Changed: surprise is -ln p, because the published -p log2 p is not monotone,
and puts a sample with p = 0.01 below one with p = 0.9; each score is a rank within the class, and loading
counts for a third at most, so that it does not become a filter that nobody asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.select.arithmetic import log2
from headwater.select.ranks import rank_within_classes
from headwater.select.samples import Floats, Ints, Samples

STALLED = 0.1
"""Share of its time that training waits for data from which on loading is the bottleneck."""
_MIDDLE = np.float32(0.5)


def find_importance(samples: Samples, places: Ints, *, published: bool) -> Floats:
    """From 0 to 1, by rank among those of the same class at these places; NaN where nothing is known."""
    labels = samples.labels[places]
    surprise = rank_within_classes(_surprise(samples.probability[places], published), labels)
    if samples.stalled <= STALLED:
        return surprise
    weight = min(samples.stalled, 1.0)
    margin = rank_within_classes(-samples.margin[places], labels)
    cheap = rank_within_classes(-_cost(samples, places), labels)
    margin = np.where(np.isnan(margin), surprise, margin)
    cheap = np.where(np.isnan(cheap), _MIDDLE, cheap)
    found: Floats = np.divide(surprise + margin + weight * cheap, 2 + weight, dtype=np.float32)
    return found


def _surprise(probability: Floats, published: bool) -> NDArray[np.floating[Any]]:
    # ranks are all that counts, and -p has those of -ln p
    return -probability * log2(probability) if published else -probability


def _cost(samples: Samples, places: Ints) -> Floats:
    """Seconds and bytes, both scaled to 0..1, half and half; one alone where the other is unknown."""
    seconds, size = (_scale(column[places]) for column in (samples.seconds, samples.bytes))
    both = (seconds + size) / 2
    return np.where(np.isnan(both), np.fmax(seconds, size), both)


def _scale(values: Floats) -> Floats:
    told = np.isfinite(values)
    if not told.any():
        return values
    least, most = values.min(where=told, initial=np.inf), values.max(where=told, initial=-np.inf)
    scaled: Floats = (values - least) / (most - least if most > least else np.float32(1))
    return scaled
