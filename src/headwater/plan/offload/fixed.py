"""One option for every sample that has it, named by the caller, whatever it costs.

With the cut after crop and resize this is SOPHON's baseline Resize-Off.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.plan.offload.load import Load
from headwater.plan.offload.uniform import Offload
from headwater.plan.offload.workload import Choice, Workload


@dataclass(frozen=True)
class Fixed:
    """Samples that lack `way` go as they are."""

    way: Offload

    def choose(self, work: Workload) -> Choice:
        choice, way = work.raw(), work.options.place_of(self.way)
        for rows in work.options.blocks():
            choice[rows][work.options.has(way, rows)] = way
        return choice

    def explain(self, before: Load, after: Load) -> str:
        return "the policy takes one option for all that have it, whatever it costs"
