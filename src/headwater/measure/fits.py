"""Fits: how a measured number follows from what is known beforehand, kept as a few sums.

Ridge regression (Hoerl and Kennard, 1970) by means and products, merged as by Chan, Golub and LeVeque
(1983): rows are not kept, and adding some costs the same however many came before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse

Doubles = NDArray[np.float64]

_RIDGE = 2.0
"""Rows that say that nothing matters but the first feature."""
_FLAT = 1e-7
"""Spread of a feature over its size below which it does not vary, but for rounding."""
_LARGEST = 1e100
"""Of a feature over the first: squares of more would be infinite."""
_REACH = 6.0
"""Spreads from the mean ratio beyond which nothing is predicted."""
_LOWEST = 0.1
"""Of the mean ratio; for what spreads widely."""

HELD = 8
"""Rows after which a `SteadyFit` predicts."""
_OUTLIER = 5.0
_LOWER_QUARTER = 0.25
_WINDOW = 4096.0


class Fit:
    """A number as a weighted sum of features, learned from rows of both.

    The first feature is what the number is about proportional to. It is above 0 and the unit of all errors,
    so a row counts by its relative error, however large it is. With few rows, or features that do not vary,
    the fit is the mean ratio of the number to the first feature.
    """

    def __init__(self, features: int) -> None:
        if features < 1:
            raise WrongUse(f"a fit of {features} features; it needs one that the number is proportional to")
        self.features = features
        self.count = 0
        self.weight = 0.0
        """Rows that the evidence is worth: fewer than `count` once some was forgotten."""
        # of the other features and the number, all divided by the first feature
        self._mean = np.zeros(features)
        self._scatter = np.zeros((features, features))
        self._solved: tuple[Doubles, Doubles] | None = None

    @property
    def ratio(self) -> float:
        """The mean of the number over the first feature."""
        return float(self._mean[-1])

    def add(self, x: Doubles, y: Doubles) -> None:
        """Rows of features and the number that belongs to each; raises `WrongUse` for what is not finite."""
        rows = _divide(x, y, self.features)
        if len(rows):
            mean = rows.mean(axis=0)
            centred = rows - mean
            self._merge(len(rows), mean, centred.T @ centred)
            self.count += len(rows)

    def predict(self, x: Doubles) -> Doubles:
        """The number for each row of features, at least 0; 0 before the first row was added."""
        _check(x, self.features)
        coefficients, (low, high) = self._solve()
        with np.errstate(all="ignore"):
            found = np.clip(x @ coefficients, low * x[:, 0], high * x[:, 0])
        if not np.isfinite(found).all():
            raise WrongUse("a feature is not finite")
        return found

    def forget(self, share: float) -> None:
        """Let this share of the evidence no longer count, so that what comes counts for more."""
        if not 0 <= share <= 1:
            raise WrongUse(f"share is {share}; it must be from 0 to 1")
        self.weight *= 1 - share
        self._scatter *= 1 - share
        self._solved = None

    def join(self, other: Fit, *, most: float = math.inf) -> None:
        """Take in another's evidence, of a number that is much the same, as at most so many rows."""
        share = min(1.0, most / other.weight) if other.weight else 0.0
        self._merge(other.weight * share, other._mean, other._scatter * share)
        self.count += other.count

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; `from_dict` gives the same fit, bit for bit."""
        return {
            "count": self.count,
            "weight": self.weight,
            "mean": self._mean.tolist(),
            "scatter": self._scatter.tolist(),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], features: int) -> Fit:
        """Raises `WrongUse` for what is no stored fit of so many features."""
        fit = cls(features)
        try:
            fit.count, fit.weight = int(content["count"]), float(content["weight"])
            fit._mean = np.array(content["mean"], np.float64)
            fit._scatter = np.array(content["scatter"], np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise WrongUse(f"this is no stored fit: {error!r}; measure again") from error
        whole = fit._mean.shape == (features,) and fit._scatter.shape == (features, features)
        sums = np.array([fit.count, fit.weight, *np.diag(fit._scatter)]) if whole else np.array([-1.0])
        if sums.min() < 0 or not np.isfinite([*sums, *fit._mean, *fit._scatter.ravel()]).all():
            raise WrongUse(f"a stored fit of {features} features is damaged; measure again")
        return fit

    def _merge(self, weight: float, mean: Doubles, scatter: Doubles) -> None:
        """Take in evidence of so many rows: their mean, and products of what they differ from it."""
        total = self.weight + weight
        if not total:
            return
        shift = mean - self._mean
        self._scatter = self._scatter + scatter + np.outer(shift, shift) * (self.weight * weight / total)
        self._mean = self._mean + shift * (weight / total)
        self.weight = total
        self._solved = None

    def _solve(self) -> tuple[Doubles, Doubles]:
        """What each feature counts for, and between which ratios to the first feature a number is."""
        if self._solved is None:
            spread = np.sqrt(np.diag(self._scatter) / (self.weight or 1.0))
            slopes = self._slopes(spread[:-1])
            start = self._mean[-1] - self._mean[:-1] @ slopes
            low, high = self.ratio - _REACH * spread[-1], self.ratio + _REACH * spread[-1]
            limits = np.array([max(low, _LOWEST * self.ratio, 0.0), max(high, 0.0)])
            self._solved = np.concatenate([[start], slopes]), limits
        return self._solved

    def _slopes(self, spread: Doubles) -> Doubles:
        slopes = np.zeros(self.features - 1)
        varies = spread > _FLAT * np.abs(self._mean[:-1])
        if varies.any():
            unit = spread[varies] * math.sqrt(self.weight)
            inner = self._scatter[:-1, :-1][np.ix_(varies, varies)] / np.outer(unit, unit)
            inner[np.diag_indices_from(inner)] += _RIDGE / self.weight
            slopes[varies] = np.linalg.solve(inner, self._scatter[:-1, -1][varies] / unit) / unit
        return slopes


class SteadyFit:
    """A fit of what is now and then measured far too high, and drifts.

    The first rows are held back and compared with each other, later ones with what was expected; what is far
    above counts as a few times as much. Old rows fade.
    """

    def __init__(self, features: int) -> None:
        self._fit = Fit(features)
        self._held: list[tuple[Doubles, Doubles]] = []

    @property
    def count(self) -> int:
        """Rows that were added."""
        return self._fit.count + sum(len(y) for _, y in self._held)

    def add(self, x: Doubles, y: Doubles) -> None:
        """As `Fit.add`."""
        _divide(x, y, self._fit.features)
        if self._fit.count:
            self._learn(x, y, (self._fit.predict(x) + self._fit.ratio * x[:, 0]) / 2)
            return
        self._held.append((x, y))
        if self.count >= HELD:
            x, y = (np.concatenate(column) for column in zip(*self._held, strict=True))
            self._held.clear()
            self._learn(x, y, np.quantile(y / x[:, 0], _LOWER_QUARTER) * x[:, 0])

    def predict(self, x: Doubles) -> Doubles:
        """As `Fit.predict`; 0 before there are `HELD` rows."""
        return self._fit.predict(x)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without rows that are held back."""
        return self._fit.to_dict()

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], features: int) -> SteadyFit:
        """As `Fit.from_dict`."""
        fit = cls(features)
        fit._fit = Fit.from_dict(content, features)
        return fit

    def _learn(self, x: Doubles, y: Doubles, expected: Doubles) -> None:
        # where nothing is expected at all, nothing is far above it
        limit = np.where(expected > 0, _OUTLIER * expected, np.inf)
        self._fit.forget(len(y) / (len(y) + _WINDOW))
        self._fit.add(x, np.minimum(y, limit))


def _divide(x: Doubles, y: Doubles, features: int) -> Doubles:
    """The other features and the number, over the first feature."""
    _check(x, features)
    if y.shape != (len(x),):
        raise WrongUse(f"numbers have the shape {y.shape}; ({len(x)},) is needed, one per row of features")
    with np.errstate(all="ignore"):
        rows: Doubles = np.column_stack([x[:, 1:], y]) / x[:, :1]
    if not (np.abs(rows) < _LARGEST).all():
        raise WrongUse("a feature or a number is not finite, or far too large for its first feature")
    return rows


def _check(x: Doubles, features: int) -> None:
    if x.ndim != 2 or x.shape[1] != features:
        raise WrongUse(f"features have the shape {x.shape}; (rows, {features}) is needed")
    if not (x[:, 0].min(initial=1.0) > 0 and x[:, 0].max(initial=1.0) < math.inf):
        raise WrongUse("a first feature is not above 0, or not finite")
