"""Which tensors of a training step stay in memory, leave it, or are made again; pure, from a record."""

from __future__ import annotations

from headwater.plan.memory.fetches import place_fetches
from headwater.plan.memory.hybrid import make_plan
from headwater.plan.memory.lanes import advance_triggers, first_needs, free_times, place_triggers
from headwater.plan.memory.plan import WAYS, Action, Choice, MemoryPlan, Rates
from headwater.plan.memory.recompute import recompute_seconds
from headwater.plan.memory.record import AccessRecord, TensorRecord, held_over_time
from headwater.plan.memory.score import eviction_score
from headwater.plan.memory.simulate import Outcome, simulate

__all__ = [
    "WAYS",
    "AccessRecord",
    "Action",
    "Choice",
    "MemoryPlan",
    "Outcome",
    "Rates",
    "TensorRecord",
    "advance_triggers",
    "eviction_score",
    "first_needs",
    "free_times",
    "held_over_time",
    "make_plan",
    "place_fetches",
    "place_triggers",
    "recompute_seconds",
    "simulate",
]
