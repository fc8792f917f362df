"""What is minimised: weights as one flat vector, sums of gradients over rows of features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.plan.replay import Prior
from headwater.train.replay.features import Features, Part

Vector = NDArray[np.float32]
Parts = Iterable[Part]


class Sketch(Protocol):
    """What is known of a Hessian without going through all samples."""

    def at(self, weights: Vector) -> Prior:
        """Of these weights."""
        ...


class Objective(Protocol):
    """A model and its loss, without L2. All sums are over the samples of the parts."""

    @property
    def size(self) -> int:
        """How many weights it has."""
        ...

    @property
    def experimental(self) -> bool:
        """Whether replay is known to be far off for it: what is not convex."""
        ...

    def describe(self) -> dict[str, Any]:
        """Plain data by which it is known; equal for equal models."""
        ...

    def check(self, features: Features) -> None:
        """Raise `JournalRefused` for features that it does not take."""
        ...

    def name_weights(self, weights: Vector) -> Mapping[str, NDArray[np.float32]]:
        """The flat vector as tensors by name."""
        ...

    def value(self, weights: Vector, parts: Parts) -> float:
        """The loss."""
        ...

    def gradient(self, weights: Vector, parts: Parts) -> Vector:
        """Of the loss, by all weights."""
        ...

    def change(self, weights: Vector, offset: Vector, parts: Parts, *, known: Vector) -> Vector:
        """The gradient at `weights + offset` less the one at `weights`; `known` is about the latter."""
        ...

    def curve(self, weights: Vector, direction: Vector, parts: Parts) -> Vector:
        """The Hessian times a direction."""
        ...

    def sketch(self, some: Part) -> Sketch | None:
        """Of the Hessian, from a few samples; None for a model of which nothing is known."""
        ...
