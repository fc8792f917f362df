"""When what was swapped is brought back: in time by the lanes, and earlier than that where there is room."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.plan.memory.lanes import NO_LEADS, advance_triggers, first_needs, place_triggers
from headwater.plan.memory.plan import Action, Rates
from headwater.plan.memory.record import AccessRecord
from headwater.plan.memory.simulate import simulate

AHEAD = 0.05
"""Seconds; longer than a busy machine keeps a thread from a core, and short beside an iteration."""


def place_fetches(
    record: AccessRecord,
    actions: Mapping[int, Action],
    *,
    budget: int,
    rates: Rates,
    leads: Mapping[int, float] = NO_LEADS,
) -> dict[int, int]:
    """The access at which each fetch is issued, those that are needed first in front."""
    latest = place_triggers(record, first_needs(record, actions), rates, leads)
    before = simulate(record, actions, latest, budget=budget, rates=rates)
    early = advance_triggers(record, latest, before.held, budget, seconds=AHEAD)
    after = simulate(record, actions, early, budget=budget, rates=rates)
    worse = after.peak > max(before.peak, budget) or after.late > before.late
    return latest if worse else early
