"""Ours: every option of every sample, by what the next store second saves.

Options of a sample that lie on the lower convex hull of (store seconds, cost) are worth a thought, and the
segments of all hulls are taken in order of cost saved per store second, until an epoch gets no shorter: a
multiple-choice knapsack, solved as its linear relaxation. The cost is link seconds while the link is the
bottleneck, and trainer CPU seconds while that is. Where relief of one starves the other, it is a mean of
both, and the weight is found by bisection: each weight also gives a bound below which no plan can come.

Without a starved trainer CPU the time is at most one segment's link time, or its store time if that is
less, above the best possible. With one, no such bound is known; on random profiles of 2,000 samples it
came within 5 % of the bound from below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headwater.plan.offload.blend import blend
from headwater.plan.offload.ladder import Ladder
from headwater.plan.offload.load import Load, Loads
from headwater.plan.offload.segments import Block, Segments, hulls
from headwater.plan.offload.workload import Choice, Workload

_CLOSE = 1.003
"""A plan so near its bound is good enough."""
_HALVINGS = 10
_SEARCHED = 1 << 15
"""Samples on which the weight is sought; all are then planned with it."""


@dataclass(frozen=True, eq=False)
class _Trial:
    """All hulls at one weight of the link against the trainer's CPU."""

    weight: float
    ladder: Ladder

    @classmethod
    def of(cls, work: Workload, weight: float) -> _Trial:
        per_byte, per_second = weight / work.rates.link, (1 - weight) / work.rates.trainer_cores

        def cut(block: Block) -> Iterator[Segments]:
            return hulls(block, block.cost(per_byte, per_second))

        return cls(weight, Ladder.survey(work, cut))

    @property
    def seconds(self) -> float:
        """Of the quickest plan, to the bin."""
        loads = self.ladder.loads
        return float(loads.seconds[loads.first_best()])

    def bounds(self) -> tuple[float, int]:
        """What no plan can be quicker than, and between which bins that was found.

        Whoever takes all segments above an efficiency has the least cost + efficiency x store seconds of all
        plans; and an epoch is never shorter than any weighted mean of what the four resources need.
        """
        loads, price = self.ladder.loads, self.ladder.edges
        cost = self.weight * loads.link + (1 - self.weight) * loads.trainer_cpu
        cores = loads.rates.store_cores * loads.rates.store_speed
        with np.errstate(invalid="ignore", over="ignore"):
            least = (cost + price * loads.store_seconds) / (1 + price * cores)
        least = np.append(np.nan_to_num(least, nan=0.0, posinf=0.0), cost[-1])
        place = int(np.argmax(least))
        return max(float(least[place]), float(loads.trainer[0])), min(place, len(cost) - 1)

    def favours_link(self, place: int) -> bool:
        """Whether the link is still the slower of the two, so that it deserves more weight."""
        return bool(self.ladder.loads.link[place] > self.ladder.loads.trainer_cpu[place])

    def best(self) -> Choice:
        return self.ladder.climb(Loads.first_best)


@dataclass(frozen=True)
class ConvexHull:
    def choose(self, work: Workload) -> Choice:
        before = work.before
        if before.bottleneck not in ("link", "trainer CPU"):
            return work.raw()
        first = _Trial.of(work, 1.0 if before.bottleneck == "link" else 0.0)
        _, place = first.bounds()
        if first.favours_link(place) == (first.weight == 1.0):
            return first.best()
        return _between(work)

    def explain(self, before: Load, after: Load) -> str:
        return f"what saves most per store second first, and the {after.bottleneck} is now the slowest"


def _between(work: Workload) -> Choice:
    """Both link and trainer CPU would bind: blend the plans at the weights about which they bind together."""
    low, high, near = _bracket(work.thinned(_SEARCHED))
    trials = {weight: _Trial.of(work, weight) for weight in (low, high, near)}
    # where samples are alike, all of them change sides at one weight: only a mixture meets both
    sides = [trials[weight].ladder.take(trials[weight].bounds()[1]) for weight in (low, high)]
    mixed = blend(work, *sides)
    return blend(work, trials[near].best(), mixed)


def _bracket(work: Workload) -> tuple[float, float, float]:
    """Weights at which the link is the slower and the faster of the two, and the best weight seen."""
    low, high, bound, found = 0.0, 1.0, 0.0, dict[float, float]()
    for _ in range(_HALVINGS):
        trial = _Trial.of(work, (low + high) / 2)
        least, place = trial.bounds()
        bound, found[trial.weight] = max(bound, least), trial.seconds
        low, high = (trial.weight, high) if trial.favours_link(place) else (low, trial.weight)
        if min(found.values()) <= bound * _CLOSE:
            break
    return low, high, min(found, key=lambda weight: found[weight])
