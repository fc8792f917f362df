"""What an objective is to a maximiser: gains, given what was taken so far."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.select.objectives.alike import Floats
from headwater.select.objectives.cover import Cover
from headwater.select.parts import Vectors
from headwater.select.samples import Ints


class Progress(Protocol):
    """Problems of one size, side by side, with what was taken of each so far."""

    @property
    def cover(self) -> Cover: ...
    @property
    def shape(self) -> tuple[int, int]:
        """Problems, and samples in each."""
        ...

    def gains(self, places: Ints | None = None) -> Floats:
        """What each sample would add, or each of `places`: (candidates, problems).

        A gain never grows while samples are taken, not by a bit of rounding either.
        """
        ...

    def take(self, places: Ints) -> None:
        """One sample in each problem."""
        ...

    def value(self) -> NDArray[np.float64]:
        """What was reached in each problem; more is better."""
        ...


class Objective(Protocol):
    def begin(self, vectors: Vectors, rows: Ints) -> Progress:
        """Nothing taken yet of the samples in each row of places."""
        ...
