"""Nothing is offloaded: every file crosses the link as it is."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.plan.offload.load import Load
from headwater.plan.offload.workload import Choice, Workload


@dataclass(frozen=True)
class Nothing:
    def choose(self, work: Workload) -> Choice:
        return work.raw()

    def explain(self, before: Load, after: Load) -> str:
        return "that is the policy"
