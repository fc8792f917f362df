"""One cut for all samples, or nothing, by predicted throughput: FastFlow's coarse rule (VLDB'23).

It looks only where the trainer waits: where samples come slower than it could take them by a factor of 1.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.plan.offload.fixed import Fixed
from headwater.plan.offload.load import Load
from headwater.plan.offload.workload import Choice, Workload


@dataclass(frozen=True)
class OneForAll:
    """The quickest of the cuts without codec, the shallowest of equals, and only if quicker than none."""

    starved: float = 1.3

    def choose(self, work: Workload) -> Choice:
        best, load = work.raw(), work.before
        if load.seconds <= self.starved * load.times["trainer"]:
            return best
        for way in work.options.plain()[1:]:
            choice = Fixed(work.options.ways[way]).choose(work)
            found = work.load(choice)
            if found.seconds < load.seconds and found.keeps_cap:
                best, load = choice, found
        return best

    def explain(self, before: Load, after: Load) -> str:
        return (
            f"of one cut for all samples this is the quickest, and the {after.bottleneck} is now the slowest"
        )
