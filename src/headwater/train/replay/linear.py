"""A linear model with a smooth loss: gradients by two matrix products, however many samples there are.

The gradient of one sample is the outer product of its slope and its features, so a sum over samples is one
product of two matrices, and no gradient of a single sample is ever made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwater.errors import JournalRefused, WrongUse
from headwater.plan.replay import Kronecker, Prior, find_span
from headwater.train.replay.features import Features, Part
from headwater.train.replay.losses import LOSSES, Loss
from headwater.train.replay.objective import Parts, Sketch, Vector

KIND = "linear"
RANK = 32
"""Eigenvectors of the features that are known to bend by themselves."""


@dataclass(frozen=True, eq=False)
class Shifting:
    """What features go through first: `(x - mean) * scale`. It is folded into the weights."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LinearHead:
    """Outputs `x @ weight.T + bias`, under the loss of this name.

    The flat weights are `weight`, (outputs, features), and then `bias` if there is one. Raises `WrongUse`
    for a loss that it does not know.
    """

    features: int
    outputs: int
    loss: str = "softmax"
    bias: bool = True
    shifting: Shifting | None = None
    experimental: bool = False

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise WrongUse(f"loss is {self.loss!r}; it may be {', '.join(LOSSES)}")

    @property
    def size(self) -> int:
        return self.outputs * (self.features + self.bias)

    def describe(self) -> dict[str, Any]:
        shifting = self.shifting
        numbers = {} if shifting is None else {"mean": shifting.mean, "scale": shifting.scale}
        return {
            "kind": KIND,
            "features": self.features,
            "outputs": self.outputs,
            "loss": self.loss,
            "bias": self.bias,
            **{name: values.astype("<f8").tobytes() for name, values in numbers.items()},
        }

    def check(self, features: Features) -> None:
        if features.values.ndim != 2 or features.values.shape[1] != self.features:
            raise JournalRefused(
                f"features are {features.values.shape}, the journal is of a head for (n, {self.features}); "
                "bring the features that it was trained on"
            )
        problem = self._loss.check(torch.from_numpy(np.asarray(features.targets)), self.outputs)
        if problem:
            raise JournalRefused(f"{problem}; bring the targets that it was trained on")

    def name_weights(self, weights: Vector) -> Mapping[str, NDArray[np.float32]]:
        matrix = weights[: self.outputs * self.features].reshape(self.outputs, self.features)
        return {"weight": matrix, **({"bias": weights[matrix.size :]} if self.bias else {})}

    def value(self, weights: Vector, parts: Parts) -> float:
        matrix, bias = self._fold(weights)
        return sum(float(self._loss.value(torch.addmm(bias, x, matrix.T), target)) for x, target in parts)

    def gradient(self, weights: Vector, parts: Parts) -> Vector:
        matrix, bias = self._fold(weights)
        total = _Total(self)
        for x, target in parts:
            total.add(self._loss.slope(torch.addmm(bias, x, matrix.T), target).T, x)
        return total.flat()

    def change(self, weights: Vector, offset: Vector, parts: Parts, *, known: Vector) -> Vector:
        return self._second(weights, offset, parts, self._loss.shift)

    def curve(self, weights: Vector, direction: Vector, parts: Parts) -> Vector:
        return self._second(weights, direction, parts, self._loss.curve)

    def sketch(self, some: Part) -> Sketch:
        x = some[0]
        if self.shifting is not None:
            mean, scale = self._shifts
            x = (x - mean) * scale
        return _HeadSketch(self, x)

    def _second(self, weights: Vector, other: Vector, parts: Parts, of: Any) -> Vector:
        """Outputs of both in one product, since it is the features that take time to come from memory."""
        pairs = [self._fold(each) for each in (weights, other)]
        matrix, bias = torch.cat([pairs[0][0], pairs[1][0]]), torch.cat([pairs[0][1], pairs[1][1]])
        total = _Total(self)
        for x, _ in parts:
            both = torch.addmm(bias[:, None], matrix, x.T)
            total.add(of(both[: self.outputs], both[self.outputs :]), x)
        return total.flat()

    @cached_property
    def _shifts(self) -> tuple[Tensor, Tensor]:
        """Mean and scale in single precision."""
        assert self.shifting is not None
        mean, scale = (each.astype(np.float32) for each in (self.shifting.mean, self.shifting.scale))
        return torch.from_numpy(mean), torch.from_numpy(scale)

    @property
    def _loss(self) -> Loss:
        return LOSSES[self.loss]

    def _fold(self, weights: Vector) -> tuple[Tensor, Tensor]:
        """Matrix and bias for features as they come."""
        flat = torch.from_numpy(weights)
        edge = self.outputs * self.features
        matrix = flat[:edge].view(self.outputs, self.features)
        bias = flat[edge:] if self.bias else torch.zeros(self.outputs)
        if self.shifting is not None:
            mean, scale = self._shifts
            matrix = matrix * scale
            bias = bias - matrix @ mean
        return matrix, bias


class _HeadSketch:
    """The span of some features, scaled, and what the loss makes of their outputs."""

    def __init__(self, head: LinearHead, x: Tensor) -> None:
        self._head, self._x = head, x[::2]  # outputs say enough with fewer samples than features do
        self._span = find_span(x.numpy(), RANK, bias=head.bias)

    def at(self, weights: Vector) -> Prior:
        tensors = {name: torch.from_numpy(each) for name, each in self._head.name_weights(weights).items()}
        outputs = tensors["weight"] @ self._x.T
        outputs = outputs + tensors["bias"][:, None] if self._head.bias else outputs
        bend = LOSSES[self._head.loss].bend(outputs)
        return Kronecker(self._span, bend.double().numpy())


class _Total:
    """A sum of outer products, and what it is by the weights of a head."""

    def __init__(self, head: LinearHead) -> None:
        edge = head.outputs * head.features
        self._head, self._flat, self._begun = head, torch.empty(edge + head.outputs), False
        self._matrix, self._bias = self._flat[:edge].view(head.outputs, head.features), self._flat[edge:]

    def add(self, slopes: Tensor, x: Tensor) -> None:
        """Slopes (outputs, n) of samples, and their features (n, F)."""
        # The first part overwrites: most sums are over a few samples, and zeros would cost as much.
        self._matrix.addmm_(slopes, x, beta=int(self._begun))
        if self._begun:
            self._bias += slopes.sum(1)
        else:
            torch.sum(slopes, 1, out=self._bias)
        self._begun = True

    def flat(self) -> Vector:
        if not self._begun:
            self._flat.zero_()
        if self._head.shifting is not None:
            mean, scale = self._head._shifts
            self._matrix.addr_(self._bias, mean, alpha=-1).mul_(scale)
        found: Vector = self._flat[: self._head.size].numpy()
        return found
