"""Fits: how a measured number follows from what is known beforehand, kept as a few sums.

Ridge regression (Hoerl and Kennard, 1970) by means and products, merged row by row as by Chan, Golub and
LeVeque (1983): rows are not kept, and adding some costs the same however many came before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headwater.errors import WrongUse

Doubles = NDArray[np.float64]

_RIDGE = 2.0
"""Rows that say "no slope", which the others must outweigh."""
_FLAT = 1e-9
"""Spread of a feature over its size below which it is constant."""
_REACH = 3.0
"""Spreads from the mean beyond which a feature is not followed: nothing like that was seen."""


class Fit:
    """A number as a weighted sum of features, learned from rows of both.

    The first feature is what the number is about proportional to. It is above 0, and the unit of all errors,
    so a row counts by its relative error, however large it is. With few rows, or features that do not vary,
    the fit is the mean ratio of the number to the first feature.
    """

    def __init__(self, features: int) -> None:
        if features < 1:
            raise WrongUse(
                f"a fit of {features} features; it needs the one that the number is proportional to"
            )
        self.features = features
        self.count = 0
        self.weight = 0.0
        """Rows that the evidence is worth: fewer than `count` once some was forgotten."""
        # of the other features and the number, all divided by the first feature
        self._mean = np.zeros(features)
        self._scatter = np.zeros((features, features))
        self._slopes: Doubles | None = None

    def add(self, x: ArrayLike, y: ArrayLike) -> None:
        """Rows of features and the number that belongs to each. Raises `WrongUse` for what is not finite."""
        rows = self._divide(x, y)
        if not len(rows):
            return
        weight, mean = self.weight + len(rows), rows.mean(axis=0)
        centred, shift = rows - mean, mean - self._mean
        self._scatter += centred.T @ centred + np.outer(shift, shift) * (self.weight * len(rows) / weight)
        self._mean += shift * (len(rows) / weight)
        self.weight, self.count = weight, self.count + len(rows)
        self._slopes = None

    def predict(self, x: ArrayLike) -> Doubles:
        """The number for each row of features, at least 0; 0 before the first row was added."""
        features = self._check(x)
        mean, spread = self._mean[:-1], _REACH * self._spread()[:-1]
        others = features[:, 1:] / features[:, :1]
        np.clip(others, mean - spread, mean + spread, out=others)
        ratio = (others - mean) @ self._solve() + self._mean[-1]
        found: Doubles = np.maximum(ratio, 0.0) * features[:, 0]
        return found

    def forget(self, share: float) -> None:
        """Let the evidence so far count for less, so that what comes counts for more."""
        if not 0 <= share <= 1:
            raise WrongUse(f"share is {share}; it must be from 0 to 1")
        self.weight *= 1 - share
        self._scatter *= 1 - share
        self._slopes = None

    @property
    def error(self) -> float:
        """Root mean square of what is left unexplained, over the mean; NaN before the first row."""
        if not self.weight:
            return float("nan")
        slopes, scatter = self._solve(), self._scatter
        left = scatter[-1, -1] - 2 * slopes @ scatter[:-1, -1] + slopes @ scatter[:-1, :-1] @ slopes
        scale = abs(float(self._mean[-1]))
        return float(np.sqrt(max(left, 0.0) / self.weight)) / scale if scale else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; `from_dict` gives the same fit, bit for bit."""
        return {
            "count": self.count,
            "weight": self.weight,
            "mean": self._mean.tolist(),
            "scatter": self._scatter.tolist(),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Fit:
        """Raises `WrongUse` for what `to_dict` cannot have made."""
        try:
            mean = np.array(content["mean"], np.float64)
            scatter = np.array(content["scatter"], np.float64)
            count, weight = int(content["count"]), float(content["weight"])
        except (KeyError, TypeError, ValueError) as error:
            raise WrongUse(f"this is no stored fit: {error!r}") from error
        sound = np.isfinite(mean).all() and np.isfinite(scatter).all() and np.isfinite(weight)
        if mean.ndim != 1 or scatter.shape != (len(mean), len(mean)) or not sound or min(count, weight) < 0:
            raise WrongUse("a stored fit is damaged; measure again")
        fit = cls(len(mean))
        fit.count, fit.weight, fit._mean, fit._scatter = count, weight, mean, scatter
        return fit

    def _spread(self) -> Doubles:
        found: Doubles = np.sqrt(np.diag(self._scatter) / max(self.weight, 1e-300))
        return found

    def _solve(self) -> Doubles:
        """How the ratio changes with each of the other features; 0 for those that do not vary."""
        if self._slopes is not None:
            return self._slopes
        spread = self._spread()[:-1]
        varies = spread > _FLAT * np.abs(self._mean[:-1])
        slopes = np.zeros(self.features - 1)
        if varies.any():
            unit = spread[varies] * np.sqrt(self.weight)
            inner = self._scatter[:-1, :-1][np.ix_(varies, varies)] / np.outer(unit, unit)
            inner[np.diag_indices_from(inner)] += _RIDGE / self.weight
            slopes[varies] = np.linalg.solve(inner, self._scatter[:-1, -1][varies] / unit) / unit
        self._slopes = slopes
        return slopes

    def _divide(self, x: ArrayLike, y: ArrayLike) -> Doubles:
        features, number = self._check(x), np.asarray(y, np.float64)
        if number.shape != (len(features),):
            raise WrongUse(f"{number.shape} numbers for {len(features)} rows of features")
        if not np.isfinite(number).all():
            raise WrongUse("a number to fit is not finite")
        rows = np.empty((len(features), self.features))
        np.divide(features[:, 1:], features[:, :1], out=rows[:, :-1])
        np.divide(number, features[:, 0], out=rows[:, -1])
        return rows

    def _check(self, x: ArrayLike) -> Doubles:
        features = np.asarray(x, np.float64)
        if features.ndim != 2 or features.shape[1] != self.features:
            raise WrongUse(f"features have the shape {features.shape}; (rows, {self.features}) is needed")
        if not np.isfinite(features).all() or features[:, 0].min(initial=1.0) <= 0:
            raise WrongUse("features must be finite, and the first of them above 0")
        return features
