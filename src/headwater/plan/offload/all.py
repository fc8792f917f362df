"""Every step that may run at the store runs there, whatever it costs; no codec."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.plan.offload.load import Load
from headwater.plan.offload.workload import Choice, Workload


@dataclass(frozen=True)
class Everything:
    """The deepest cut that a sample has."""

    def choose(self, work: Workload) -> Choice:
        choice = work.raw()
        for rows in work.options.blocks():
            for way in work.options.plain():
                choice[rows][work.options.has(way, rows)] = way
        return choice

    def explain(self, before: Load, after: Load) -> str:
        return "the policy takes the deepest cut of each, whatever it costs"
