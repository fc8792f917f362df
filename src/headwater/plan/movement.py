"""Which labels a change of the head cannot change: a bound on how far logits move against each other.

With frozen layers and a linear head, a sample's logits are W h + b. A new head moves them by dW h + db, and
by Cauchy-Schwarz no further than the norm of h allows. So the norm, a number per sample, often tells that a
label stays, without a look at the features. The published form of the rule (NDPipe, ASPLOS 2024, leaves
room for it; see docs/explanation/relabel.md) is 2 max|dW| |h| + |db|; this one looks at pairs of classes
and is never weaker.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

FEATURE_TOLERANCE = 2.0**-10
"""By which share of its norm a feature vector may differ when it is made again: one step of half precision in
each feature. Another size of batch may round the last bit of a layer the other way."""

_UNIT = 2.0**-24  # relative error of one float32 operation
_SAFE = 1.0 + 2.0**-30  # far more than float64 loses here, so that a bound stays one
_LARGEST_EXPONENT = 700.0  # of a float64; a margin beyond it has a score of 1
_ROWS_KEPT = 1 << 23  # numbers of pairs that are kept, 8 bytes each
_PAIRS_AT_ONCE = 1 << 20  # numbers of pairs that one product makes


@dataclass(frozen=True, eq=False)
class LinearHead:
    """`features @ weight.T + bias`."""

    weight: Floats
    bias: Floats

    def __post_init__(self) -> None:
        if self.weight.ndim != 2 or self.bias.shape != self.weight.shape[:1]:
            raise WrongUse(
                f"a weight of {self.weight.shape} and a bias of {self.bias.shape} are no linear head"
            )


class Movement:
    """How far labels of an old head can move under a new one of the same classes and features.

    Let y be the label of a sample with features h, z_c its logits, m = min over c != y of (z_y - z_c) its
    margin. Under the new head, for each other class c,

        z'_y - z'_c = (z_y - z_c) - ((dW_c - dW_y) h + (db_c - db_y))
                   >= m - (|dW_c - dW_y| |h| + db_c - db_y)

    by Cauchy-Schwarz. If m is greater than the largest of these brackets, `most`, then z'_y is the greatest
    logit: the label stays. Each bracket is at most 2 max|dW| |h| + |db_c - db_y|, so nothing that the
    published bound skips is missed.

    That is about real numbers. The margin was computed in float32, the new logits would be, and the
    features may have been made anew in between, so each bracket also holds three allowances, all of them
    upper bounds: FEATURE_TOLERANCE |W_c - W_y| |h| for the features, and for each of the two heads what two
    dot products of length F lose, 2 g (max|W| |h| + max|b|) with g = k / (1 - k), k = (F + 4) 2^-24
    (Higham, Accuracy and Stability of Numerical Algorithms, 3.1). So `stays` is right about the label that
    float32 would give, too, not only about the exact one.
    """

    def __init__(self, old: LinearHead, new: LinearHead) -> None:
        if old.weight.shape != new.weight.shape:
            raise WrongUse(f"heads of {old.weight.shape} and {new.weight.shape} tell different things apart")
        self._old = old.weight.astype(np.float64)
        self._change = new.weight.astype(np.float64) - self._old
        self._squares = [np.einsum("ij,ij->i", rows, rows) for rows in (self._change, self._old)]
        self._shift = new.bias.astype(np.float64) - old.bias.astype(np.float64)
        self._slope, self._offset = (sum(each) for each in zip(_rounding(old), _rounding(new), strict=True))
        self._rows: dict[int, Doubles] = {}

    def most(self, labels: NDArray[np.integer], norms: Floats) -> Doubles:
        """By how much the margin of each sample can shrink; below 0 where it must grow."""
        found = np.empty(len(labels), np.float64)
        present = np.unique(labels)
        at_once = max(1, _PAIRS_AT_ONCE // len(self._shift))
        for some in (present[begin : begin + at_once] for begin in range(0, len(present), at_once)):
            self._prepare(some)
            for label in some.tolist():
                (places,) = np.nonzero(labels == label)
                found[places] = self._most(label, norms[places].astype(np.float64))
        return found

    def carry(self, scores: Floats, margins: Floats, most: Doubles) -> tuple[Floats, Floats]:
        """Lower bounds of score and margin under the new head, for samples whose label stays.

        The margin is at least m - most. The score is 1 / (1 + s) where s sums exp(z_c - z_y) over the C - 1
        other classes. Each exponent grows by at most `most`, so s by at most the factor exp(most); and none
        is above most - m, so s is at most (C - 1) exp(most - m). The better of both is taken: a score that
        float32 rounded to 1 tells little of s, and has what a sum of C terms loses taken off.
        """
        classes = len(self._shift)
        before = np.maximum(scores.astype(np.float64) - (classes + 8) * 2.0 * _UNIT, 0.0)
        left = margins.astype(np.float64) - most
        grown = before / (before + np.exp(np.minimum(most, _LARGEST_EXPONENT)) * (1.0 - before))
        apart = 1.0 / (1.0 + (classes - 1) * np.exp(-np.maximum(left, 0.0)))
        return _down(np.maximum(grown, apart)), _down(left)

    def _most(self, label: int, norms: Doubles) -> Doubles:
        others = np.arange(len(self._shift)) != label
        if not others.any():
            return np.zeros(len(norms))
        slopes = self._rows[label][others] + self._slope
        offsets = (self._shift - self._shift[label])[others] + self._offset
        worst: Doubles = (norms[:, None] * slopes + offsets).max(axis=1)
        return worst

    def _prepare(self, labels: NDArray[np.integer]) -> None:
        """Know what each other class can gain on these labels for each unit of the norm."""
        new = np.array([label for label in labels.tolist() if label not in self._rows], np.int64)
        if (len(self._rows) + len(new)) * len(self._shift) > _ROWS_KEPT:
            self._rows.clear()
            new = labels.astype(np.int64)
        if len(new):
            moved, apart = (
                _distances(rows, squares, new)
                for rows, squares in zip((self._change, self._old), self._squares, strict=True)
            )
            self._rows.update(zip(new.tolist(), moved + FEATURE_TOLERANCE * apart, strict=True))


def stays(margins: Floats, most: Doubles) -> NDArray[np.bool_]:
    """Where the label is certain to stay; not where a margin is unknown."""
    return margins.astype(np.float64) > most  # a NaN is greater than nothing


def norms_of(features: NDArray[np.float16]) -> Floats:
    """An upper bound of each row's Euclidean norm, the next float32 above it."""
    wide = features.astype(np.float64)
    exact = np.sqrt(np.einsum("ij,ij->i", wide, wide)) * _SAFE
    above: Floats = np.nextafter(exact.astype(np.float32), np.float32(np.inf))
    return above


def _distances(rows: Doubles, squares: Doubles, some: NDArray[np.int64]) -> Doubles:
    """Upper bounds of the distance of some rows to all: one product instead of a pass for each.

    |a - b|^2 = |a|^2 + |b|^2 - 2ab loses at most 2 (F + 4) 2^-53 of the squares' sum, which is added.
    """
    both = squares[some, None] + squares
    lost = (rows.shape[1] + 4) * 2.0**-51 * both
    exact: Doubles = np.sqrt(np.maximum(both - 2.0 * (rows[some] @ rows.T), 0.0) + lost) * _SAFE
    return exact


def _rounding(head: LinearHead) -> tuple[float, float]:
    """What the difference of two logits may have lost: for each unit of the norm, and besides."""
    longest = np.sqrt(np.square(head.weight.astype(np.float64)).sum(axis=1)).max(initial=0.0) * _SAFE
    terms = (head.weight.shape[1] + 4) * _UNIT
    lost = 2.0 * terms / (1.0 - terms)
    return lost * float(longest), lost * float(np.abs(head.bias).max(initial=0.0))


def _down(values: Doubles) -> Floats:
    """The next float32 below, so that a lower bound stays one; not for what is 0 or 1 by nature."""
    rounded = values.astype(np.float32)
    return np.where(rounded > values, np.nextafter(rounded, np.float32(-np.inf)), rounded)
