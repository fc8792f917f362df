"""What logits say of samples with a label: loss, probability, margin, and the last layer's gradient.

For softmax and cross-entropy the gradient of a sample's loss by the logits is p - y, and by the weights of a
linear last layer (p - y) x h, with h the features: all of the gradient where all layers before it are frozen.
Its length is exact; how far two are apart is told by a projection, whose error `benchmarks/sketches.py`
measures. Selection by p - y is CRAIG's (ICML 2020) and NeSSA's (HotStorage 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.randomness import Draws

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

WIDTH = 32
"""Numbers of a vector by the logits, at most: what has more is projected."""
WIDEST = 512
"""The same by the weights, for as many samples as have room for that in `ROOM` bytes."""
ROOM = 1 << 30
_STEP = -3  # keys the signs of projections; no pipeline has a step of this number
_ERRORS, _FEATURES = range(2)


@dataclass(frozen=True, eq=False)
class Scored:
    """A row per sample: its loss, the target's probability, and that less the largest other one."""

    loss: Floats
    probability: Floats
    margin: Floats


def score(logits: Floats, targets: Ints) -> Scored:
    """Scores of samples whose targets are places among the logits; NaN where a logit is not finite."""
    probabilities, loss = _softmax(logits, targets)
    rows = np.arange(len(targets))
    own = probabilities[rows, targets].copy()
    probabilities[rows, targets] = -np.inf
    others = np.maximum(probabilities.max(axis=1, initial=-np.inf), 0.0)
    broken = ~np.isfinite(loss)
    margin = own - others
    for column in (loss, own, margin):
        column[broken] = np.nan
    return Scored(loss, own, margin)


def _softmax(logits: Floats, targets: Ints) -> tuple[Floats, Floats]:
    """The probabilities, and the loss: by logits, because of a small probability nothing would be left."""
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = logits - logits.max(axis=1, keepdims=True)
        powers = np.exp(shifted)
        total = powers.sum(axis=1, keepdims=True)
        loss: Floats = np.log(total[:, 0]) - shifted[np.arange(len(targets)), targets]
        return powers / total, loss


class Gradients:
    """Makes vectors that are about as far apart as the gradients of samples, of at most `width` float16.

    With `features`, those by the last layer's weights, else those by the logits. The same on every machine,
    so what several stores make can be compared. What has no more numbers than that is as it is; distances of
    what is projected are near the true ones (Johnson and Lindenstrauss), the nearer the wider, and lengths
    are exact.
    """

    def __init__(self, classes: int, features: int = 0, *, width: int = WIDTH) -> None:
        self._by_weights, size = bool(features), classes * (features or 1)
        projected = size > width
        self._errors = _signs(classes, _ERRORS, width) if projected else None
        self._features = _signs(features, _FEATURES, width) if projected and features else None
        self.width = width if projected else size

    def make(
        self, logits: Floats, targets: Ints, features: NDArray[Any] | None = None
    ) -> NDArray[np.float16]:
        """A row per sample; NaN where a logit is not finite."""
        errors, _ = _softmax(logits, targets)
        errors[np.arange(len(targets)), targets] -= 1
        return self.project(errors, features)

    def project(self, errors: Floats, features: NDArray[Any] | None = None) -> NDArray[np.float16]:
        """Of errors p - y that are known already: stores and trainers tell samples apart by the same."""
        if self._errors is None and not self._by_weights:
            return errors.astype(np.float16)
        if self._errors is None:
            assert features is not None
            outer = errors[:, :, None] * features.astype(np.float32, copy=False)[:, None, :]
            return outer.reshape(len(errors), self.width).astype(np.float16)
        lengths = np.linalg.norm(errors, axis=1)
        made = errors @ self._errors
        if self._features is not None:
            assert features is not None
            wide = features.astype(np.float32, copy=False)
            lengths = lengths * np.linalg.norm(wide, axis=1)
            # the product of projections of both factors is one of their outer product, which is never made
            made = made * (wide @ self._features)
        return _stretch(made, lengths).astype(np.float16)


def _stretch(rows: Floats, lengths: Floats) -> Floats:
    """The same directions with these lengths."""
    before = np.linalg.norm(rows, axis=1)
    factors = np.divide(lengths, before, out=np.zeros_like(before), where=before != 0)
    most = np.finfo(np.float16).max
    stretched: Floats = np.clip(rows * factors[:, None], -most, most)
    return stretched


def widest_for(samples: int) -> int:
    """Numbers of a vector by the weights, where so many samples have one: between `WIDTH` and `WIDEST`."""
    return max(WIDTH, min(WIDEST, ROOM // (2 * max(1, samples))))


@lru_cache(maxsize=8)
def _signs(rows: int, number: int, width: int) -> Floats:
    """A matrix of rows x width signs, drawn once and for all."""
    draws = Draws.of(np.arange(rows, dtype=np.int64), seed=0, epoch=number, step=_STEP)
    words = [draws.bits(block)[:, None] >> np.arange(64, dtype=np.uint64) for block in range(-(-width // 64))]
    bits = np.concatenate(words, axis=1)[:, :width]
    signs: Floats = (bits & np.uint64(1)).astype(np.float32) * 2 - 1
    signs.setflags(write=False)
    return signs


def rank_correlation(one: NDArray[np.floating[Any]], other: NDArray[np.floating[Any]]) -> float:
    """Spearman's: of ranks, equal values sharing theirs; NaN where one of both does not vary."""
    ranks = [_ranks(np.asarray(values, np.float64)) for values in (one, other)]
    centred = [values - values.mean() for values in ranks]
    lengths = [float(np.sqrt((values * values).sum())) for values in centred]
    if not lengths[0] or not lengths[1]:
        return float("nan")
    return float((centred[0] * centred[1]).sum() / (lengths[0] * lengths[1]))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: NDArray[np.float64] = (ends - (counts - 1) / 2)[places]
    return found
