"""The greedy as it is written: ask for every gain, take the largest, again and again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headwater.select.maximisers.maximiser import solve
from headwater.select.objectives import Objective, Progress
from headwater.select.parts import Parts, Picks, Vectors
from headwater.select.samples import Ints


@dataclass(frozen=True)
class Naive:
    """At least 1 - 1/e of the best value of a monotone submodular objective (Nemhauser, Wolsey, Fisher 1978).

    The first of equals; small parts are worked on side by side.
    """

    def maximise(self, objective: Objective, vectors: Vectors, parts: Parts) -> Picks:
        return solve(self.choose, objective, vectors, parts.stacks())

    def choose(self, progress: Progress, budget: int) -> Ints:
        problems = np.arange(progress.shape[0])
        taken = np.zeros(progress.shape[::-1], np.float32)
        places = np.empty((len(problems), budget), np.int64)
        for number in range(budget):
            places[:, number] = (progress.gains() + taken).argmax(axis=0)
            taken[places[:, number], problems] = -np.inf
            progress.take(places[:, number])
        return places
