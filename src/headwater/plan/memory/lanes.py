"""Swapping: how much time is left between both transfers, and when a fetch must be issued."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from headwater.plan.memory.plan import Action, Rates
from headwater.plan.memory.recompute import sources
from headwater.plan.memory.record import AccessRecord

NO_LEADS: Mapping[int, float] = MappingProxyType({})


def free_times(record: AccessRecord, chosen: Collection[int], rates: Rates) -> dict[int, float]:
    """Seconds between the end of the way out and the start of the way back; negative: a wait.

    The lanes carry what was chosen before, in order: out by when a tensor was saved, back by when it is used.
    """
    out = _busy_out(record, chosen, rates)
    back = _latest_starts(record, chosen, rates)
    found = {}
    for place in record.saved:
        if place not in chosen:
            tensor = record.tensors[place]
            saved, used = record.times[tensor.saved[-1]], record.times[tensor.used[0]]
            leaves = max(saved, _at(out, saved, default=saved)) + tensor.size / rates.write
            returns = min(used, _after(back, used, default=used)) - tensor.size / rates.read
            found[place] = returns - leaves
    return found


def first_needs(record: AccessRecord, actions: Mapping[int, Action]) -> dict[int, int]:
    """The access at which each swapped tensor is needed first: its own, or that of one made of it."""
    again = {place for place, action in actions.items() if action == "recompute"}
    needs = {place: record.tensors[place].used[0] for place, action in actions.items() if action == "swap"}
    for place in again:
        use = record.tensors[place].used[0]
        for source in sources(record, place, again) or ():
            if source in needs:
                needs[source] = min(needs[source], use)
    return needs


def place_triggers(
    record: AccessRecord,
    needs: Mapping[int, int],
    rates: Rates,
    leads: Mapping[int, float] = NO_LEADS,
) -> dict[int, int]:
    """The access at which each fetch is issued, so that the lane brings all of them in time.

    `needs` says at which access each is wanted. Placed backwards from the last, each before the next one's
    start; `leads` are seconds by which some start earlier, as feedback found. Fetches begin with the backward
    pass at the earliest. In the order in which they are needed.
    """
    triggers = {}
    for place, start in reversed(_starts(record, needs, rates, leads)):
        nearest = bisect_right(record.times, start) - 1
        triggers[place] = min(max(nearest, record.first_use), needs[place])
    return triggers


def advance_triggers(
    record: AccessRecord, triggers: Mapping[int, int], held: Sequence[int], budget: int, *, seconds: float
) -> dict[int, int]:
    """Triggers up to so many seconds earlier, where there is room: a thread may have to wait for a core.

    `held` are the most bytes at each access with the triggers as they are; what is needed first comes first.
    """
    held, found = list(held), {}
    for place, trigger in triggers.items():
        size, first = record.tensors[place].size, trigger
        earliest = max(bisect_left(record.times, record.times[trigger] - seconds), record.first_use)
        while first > earliest and held[first - 1] + size <= budget:
            first -= 1
            held[first] += size
        found[place] = first
    return found


def _starts(
    record: AccessRecord, needs: Mapping[int, int], rates: Rates, leads: Mapping[int, float]
) -> list[tuple[int, float]]:
    """The last first."""
    free = float("inf")
    found = []
    for place in sorted(needs, key=lambda place: -needs[place]):
        size = record.tensors[place].size
        free = min(record.times[needs[place]], free) - size / rates.read - leads.get(place, 0.0)
        found.append((place, free))
    return found


def _busy_out(record: AccessRecord, chosen: Collection[int], rates: Rates) -> list[tuple[float, float]]:
    """(asked at, done at) of each transfer out, in order."""
    free, found = 0.0, []
    for place in sorted(chosen, key=lambda place: record.tensors[place].saved[-1]):
        asked = record.times[record.tensors[place].saved[-1]]
        free = max(free, asked) + record.tensors[place].size / rates.write
        found.append((asked, free))
    return found


def _latest_starts(record: AccessRecord, chosen: Collection[int], rates: Rates) -> list[tuple[float, float]]:
    """(needed at, starts at) of each transfer back, in order."""
    needs = {place: record.tensors[place].used[0] for place in chosen}
    starts = _starts(record, needs, rates, NO_LEADS)
    return [(record.times[needs[place]], start) for place, start in reversed(starts)]


def _at(steps: list[tuple[float, float]], time: float, *, default: float) -> float:
    place = bisect_right(steps, time, key=lambda step: step[0])
    return steps[place - 1][1] if place else default


def _after(steps: list[tuple[float, float]], time: float, *, default: float) -> float:
    place = bisect_right(steps, time, key=lambda step: step[0])
    return steps[place][1] if place < len(steps) else default
