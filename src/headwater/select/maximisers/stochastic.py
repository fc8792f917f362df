"""The greedy that asks a few random samples in each step (Mirzasoleiman et al., AAAI'15)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headwater.errors import WrongUse
from headwater.select.maximisers.maximiser import solve
from headwater.select.objectives import Objective, Progress
from headwater.select.parts import Parts, Picks, Vectors
from headwater.select.samples import Ints


@dataclass(frozen=True)
class Stochastic:
    """At least 1 - 1/e - `loss` of the best value on average, for `ln(1 / loss)` gains per sample in all.

    Who is asked follows from the order within the part, which is random: the next few that are not taken.
    """

    loss: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.loss < 1:
            raise WrongUse(f"loss is {self.loss}; it must be above 0 and below 1")

    def maximise(self, objective: Objective, vectors: Vectors, parts: Parts) -> Picks:
        return solve(self.choose, objective, vectors, parts.stacks())

    def choose(self, progress: Progress, budget: int) -> Ints:
        count, size = progress.shape
        problems, places = np.arange(count), np.empty((count, budget), np.int64)
        # places that are not taken are the first `left` of them
        rest = np.repeat(np.arange(size)[:, None], count, axis=1)
        asked = math.ceil(size / budget * math.log(1 / self.loss))
        for number in range(budget):
            left = size - number
            window = (number * asked + np.arange(min(asked, left))) % left
            best = progress.gains(rest[window]).argmax(axis=0)
            places[:, number] = rest[window[best], problems]
            rest[window[best], problems] = rest[left - 1]
            progress.take(places[:, number])
        return places
