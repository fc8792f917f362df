"""What a maximiser is to a selector, and how all of them go from part to part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from headwater.select.objectives import Objective, Progress
from headwater.select.parts import Parts, Picks, Vectors
from headwater.select.samples import Ints


class Maximiser(Protocol):
    def maximise(self, objective: Objective, vectors: Vectors, parts: Parts) -> Picks:
        """As many samples of each part as its budget says; of these vectors always the same."""
        ...


def solve(
    choose: Callable[[Progress, int], Ints],
    objective: Objective,
    vectors: Vectors,
    stacks: Iterable[tuple[Ints, int]],
) -> Picks:
    """Let `choose` take samples of every stack of parts: (problems, budget) places within them."""
    found = []
    for rows, budget in stacks:
        if budget == rows.shape[1]:
            found.append(Picks(rows.ravel(), np.ones(rows.size, np.int64)))
            continue
        progress = objective.begin(vectors, rows)
        places = np.take_along_axis(rows, choose(progress, budget), axis=1)
        found.append(Picks(places.ravel(), progress.cover.sizes().ravel()))
    return Picks.joined(found)
