"""The greedy without asking for gains that cannot be the largest (Minoux 1978).

A gain of an earlier step is an upper bound, since gains never grow. Where Minoux keeps a heap and asks for
one gain at a time, stale bounds are taken in blocks, the largest first, as long as one is above the best
gain known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headwater.select.maximisers.maximiser import solve
from headwater.select.objectives import Objective, Progress
from headwater.select.objectives.alike import Floats
from headwater.select.parts import Parts, Picks, Vectors
from headwater.select.samples import Ints

_BLOCK = 64


@dataclass(frozen=True)
class Lazy:
    """The same samples as `Naive`, to the last one; a part at a time."""

    def maximise(self, objective: Objective, vectors: Vectors, parts: Parts) -> Picks:
        return solve(self.choose, objective, vectors, parts.stacks(cells=1))

    def choose(self, progress: Progress, budget: int) -> Ints:
        bounds = progress.gains()[:, 0].copy()
        places = np.empty((1, budget), np.int64)
        for number in range(budget):
            if number:
                _refresh(progress, bounds)
            places[0, number] = bounds.argmax()
            bounds[places[0, number]] = -np.inf
            progress.take(places[:, number])
        return places


def _refresh(progress: Progress, bounds: Floats) -> None:
    """Until the largest bound, the first of equals, is a gain."""
    first = int(bounds.argmax())
    bounds[first] = best = progress.gains(np.array([[first]]))[0, 0]
    stale = np.concatenate((np.flatnonzero(bounds[:first] == best), np.flatnonzero(bounds > best)))
    stale = stale[np.argsort(-bounds[stale])]
    for begin in range(0, len(stale), _BLOCK):
        some = stale[begin : begin + _BLOCK]
        some = some[bounds[some] >= best]
        if not len(some):
            break
        bounds[some] = gains = progress.gains(some[:, None])[:, 0]
        best = max(best, gains.max())
