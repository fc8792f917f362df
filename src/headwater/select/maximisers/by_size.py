"""Whichever maximiser is quickest for parts of a size."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.select.maximisers.lazy import Lazy
from headwater.select.maximisers.naive import Naive
from headwater.select.maximisers.stochastic import Stochastic
from headwater.select.objectives import Objective
from headwater.select.parts import Parts, Picks, Vectors


@dataclass(frozen=True)
class BySize:
    """Up to `small` samples naive, side by side; lazy, which takes the same; above `large` stochastic.

    What is large has more pairs of samples than are kept in memory.
    """

    small: int = 256
    large: int = 8192

    def maximise(self, objective: Objective, vectors: Vectors, parts: Parts) -> Picks:
        small, large = parts.sizes <= self.small, parts.sizes > self.large
        return Picks.joined(
            [
                Naive().maximise(objective, vectors, parts.where(small)),
                Lazy().maximise(objective, vectors, parts.where(~small & ~large)),
                Stochastic().maximise(objective, vectors, parts.where(large)),
            ]
        )
