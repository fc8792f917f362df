"""Swapping: how much time is left between both transfers, and when a fetch must be issued."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from types import MappingProxyType

from headwater.plan.memory.plan import Rates
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


def place_triggers(
    record: AccessRecord,
    swapped: Collection[int],
    rates: Rates,
    leads: Mapping[int, float] = NO_LEADS,
) -> dict[int, int]:
    """The access at which each fetch is issued, so that the lane brings all of them in time.

    Placed backwards from the last, each before the next one's start; `leads` are seconds by which some start
    earlier, as feedback found. Fetches begin with the backward pass at the earliest.
    """
    starts = dict(_starts(record, swapped, rates, leads))
    triggers = {}
    for place, start in starts.items():
        nearest = bisect_right(record.times, start) - 1
        triggers[place] = min(max(nearest, record.first_use), record.tensors[place].used[0])
    return triggers


def _starts(
    record: AccessRecord, swapped: Collection[int], rates: Rates, leads: Mapping[int, float]
) -> list[tuple[int, float]]:
    free = float("inf")
    found = []
    for place in sorted(swapped, key=lambda place: -record.tensors[place].used[0]):
        tensor = record.tensors[place]
        free = min(record.times[tensor.used[0]], free) - tensor.size / rates.read - leads.get(place, 0.0)
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
    starts = _starts(record, chosen, rates, NO_LEADS)
    return [(record.times[record.tensors[place].used[0]], start) for place, start in reversed(starts)]


def _at(steps: list[tuple[float, float]], time: float, *, default: float) -> float:
    place = bisect_right(steps, time, key=lambda step: step[0])
    return steps[place - 1][1] if place else default


def _after(steps: list[tuple[float, float]], time: float, *, default: float) -> float:
    place = bisect_right(steps, time, key=lambda step: step[0])
    return steps[place][1] if place < len(steps) else default
