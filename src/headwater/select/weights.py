"""What samples count in the end: clipped, of mean 1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse

CLIP = 5.0
"""Times the mean that a sample may count at most: one that stands for many must not steer a step alone."""
_NOTHING = 1e-200  # of the largest: less cannot be stretched to a share of the rest

Weights = NDArray[np.floating[Any]]


def balance(counts: Weights, *, clip: float = CLIP) -> NDArray[np.float32]:
    """Weights in proportion to what samples count, none above `clip` times the mean, which is 1.

    What is cut off goes to the others in proportion, or to all alike where they count nothing. Raises
    `WrongUse` for counts that are negative, not finite, or all zero.
    """
    if clip <= 1:
        raise WrongUse(f"a clip of {clip} leaves nothing of weights; it must be above 1")
    exact = np.asarray(counts, np.float64)
    if not len(exact):
        return np.empty(0, np.float32)
    if not (np.isfinite(exact).all() and exact.min() >= 0 and exact.any()):
        raise WrongUse("weights must be finite, at least 0, and not all 0")
    return _clip(exact, clip).astype(np.float32)


def _clip(weights: NDArray[np.float64], clip: float) -> NDArray[np.float64]:
    weights = weights / weights.max()  # no sum of them passes the largest float
    weights[weights < _NOTHING] = 0
    weights /= weights.mean()
    if weights.max() <= clip:
        return weights
    cut, rest = _cut(weights, clip)
    missing = len(weights) - cut * clip
    if not rest:
        return np.where(weights > 0, clip, missing / (len(weights) - cut))
    return np.minimum(weights * (missing / rest), clip)


def _cut(weights: NDArray[np.float64], clip: float) -> tuple[int, float]:
    """How many to cut, so that the others fit under the clip once they share the rest; and their sum."""
    count = len(weights)
    most = int(count / clip)  # more that weigh the clip would pass the whole
    parted = np.partition(weights, count - most - 1)
    top = np.sort(parted[count - most - 1 :])[::-1]
    rest = np.cumsum(top[::-1])[::-1] + parted[: count - most - 1].sum()
    cut = int(np.argmax((count - np.arange(most + 1) * clip) * top <= clip * rest))
    return cut, float(rest[cut])


def effective_size(weights: Weights) -> float:
    """Samples of equal weight that would be worth as much (Kish)."""
    total = float(np.sum(weights, dtype=np.float64))
    squares = float(np.sum(np.square(weights, dtype=np.float64)))
    return total * total / squares if squares else 0.0
