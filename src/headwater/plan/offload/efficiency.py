"""SOPHON's greedy (HotStorage'24): the smallest form of each sample, by bytes saved per store second.

Kept as published: cuts without codec; one candidate a sample; it starts only if the link is the bottleneck,
and stops before the store's CPU would need longer than the link. Changed: the sample at which it stops is
not counted in the totals, which the published code does; and it stops earlier where the trainer's CPU would
need longer than the whole epoch did, which cuts that only take work from the trainer never make it do.

For link and store CPU alone it is at most one sample's link time behind the best choice of candidates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headwater.plan.offload.ladder import Ladder
from headwater.plan.offload.load import Load, Loads
from headwater.plan.offload.segments import Block, Segments, single
from headwater.plan.offload.workload import Choice, Workload


@dataclass(frozen=True)
class GreedyByEfficiency:
    def choose(self, work: Workload) -> Choice:
        before, ways = work.before, work.options.plain()

        def cut(block: Block) -> Iterator[Segments]:
            return single(block, ways)

        def stop(loads: Loads) -> int:
            fits = loads.allowed & (loads.link >= loads.store_cpu) & (loads.seconds <= before.seconds)
            return int(np.flatnonzero(fits)[-1]) if fits.any() else 0

        if before.bottleneck != "link":
            return work.raw()
        return Ladder.survey(work, cut).climb(stop)

    def explain(self, before: Load, after: Load) -> str:
        return f"the most bytes per store second first, and the {after.bottleneck} is now the slowest"
