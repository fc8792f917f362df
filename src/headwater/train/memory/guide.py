"""What was learned of each pattern of accesses: its record, the plan, and what feedback changed in it."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.plan.memory import AccessRecord, Action, MemoryPlan, Rates, make_plan, place_fetches
from headwater.train.memory.iteration import Entry, Iteration

MOST_GUIDES = 8
MOST_PLANS = 4
"""Times that choices are made anew for one pattern; then only the times of fetches change."""
EARLIER = 0.05
"""A late fetch is issued earlier by so much of its transfer, or by what was waited if that is more."""
RATE_CHANGE = 1.5


class Guide:
    """The plan for iterations that save the same tensors in the same order."""

    def __init__(
        self,
        entries: Sequence[Entry],
        record: AccessRecord,
        budget: int,
        rates: Rates,
        ways: frozenset[Action],
    ) -> None:
        self.entries = tuple(entries)
        self.record = record
        self._budget, self._rates, self._ways = budget, rates, ways
        self._leads: dict[int, float] = {}
        self._reserve = 0
        self._plans = 0
        self.actions: dict[int, Action] = {}
        self.triggers: list[tuple[int, int]] = []
        self.plan = self._make()

    @property
    def pressed(self) -> bool:
        """Whether anything has to leave."""
        return bool(self.actions)

    @property
    def makes_again(self) -> bool:
        """Whether anything is to be made again, or may have to be, because the plan does not fit."""
        return not self.plan.fits or "recompute" in self.actions.values()

    def action_after_save(self, number: int, access: int) -> Action:
        """What to do with a tensor; before forward saves it for the last time, it is kept."""
        last = self.record.tensors[number].saved[-1] == access
        return self.actions.get(number, "keep") if last else "keep"

    def next_use(self, number: int, access: int) -> int:
        """The next access in the backward pass; far away if there is none."""
        found = self.record.tensors[number].gap_after(access) if number < len(self.record.tensors) else None
        return found if found is not None else 2 * len(self.record.times)

    def learn(self, iteration: Iteration, rates: Rates, ways: frozenset[Action]) -> None:
        """Late fetches start earlier, one that ran into the budget leaves more room, rates are renewed.

        A way that was closed is taken no more.
        """
        for number, waited in iteration.late.items():
            size = self.record.tensors[number].size
            self._leads[number] = self._leads.get(number, 0.0) + max(EARLIER * size / rates.read, waited)
        squeezed = iteration.postponed & iteration.late.keys()
        missing = max((self.record.tensors[number].size for number in squeezed), default=0)
        crowded = max(iteration.counts.evicted, missing)
        self._reserve = min(self._reserve + crowded, self._budget // 4)
        stale = self._plans < MOST_PLANS and (crowded or _changed(rates, self._rates))
        if stale or ways != self._ways:
            self._rates, self._ways = rates, ways
            self.plan = self._make()
        elif iteration.late:
            self._place_triggers()

    def _make(self) -> MemoryPlan:
        self._plans += 1
        plan = self._plan_with(self._reserve)
        if not plan.fits and self._reserve:
            self._reserve = 0
            plan = self._plan_with(0)
        self.actions = {choice.tensor: choice.action for choice in plan.choices if choice.action != "keep"}
        self._place_triggers()
        return plan

    def _place_triggers(self) -> None:
        placed = place_fetches(
            self.record,
            self.actions,
            budget=self._budget - self._reserve,
            rates=self._rates,
            leads=self._leads,
        )
        # Those of one access stay in the order in which they are needed.
        self.triggers = sorted(
            ((trigger, number) for number, trigger in placed.items()), key=lambda fetch: fetch[0]
        )

    def _plan_with(self, reserve: int) -> MemoryPlan:
        return make_plan(
            self.record,
            budget=self._budget,
            rates=self._rates,
            leads=self._leads,
            reserve=reserve,
            ways=self._ways,
        )


class Guides:
    """A few of them, the one used last first."""

    def __init__(self) -> None:
        self._guides: list[Guide] = []

    @property
    def none(self) -> bool:
        """Whether no pattern is known yet."""
        return not self._guides

    @property
    def makes_again(self) -> bool:
        """Whether any pattern has something made again, or there is none."""
        return self.none or any(guide.makes_again for guide in self._guides)

    @property
    def pressed(self) -> bool:
        """Whether any pattern has something that has to leave."""
        return any(guide.pressed for guide in self._guides)

    def find(self, entries: Sequence[Entry]) -> Guide | None:
        """One whose pattern begins like this."""
        begun = tuple(entries)
        return next((guide for guide in self._guides if guide.entries[: len(begun)] == begun), None)

    def find_whole(self, entries: Sequence[Entry]) -> Guide | None:
        """The one whose pattern is this."""
        whole = tuple(entries)
        return next((guide for guide in self._guides if guide.entries == whole), None)

    def add(self, guide: Guide) -> None:
        self._guides = [guide, *(old for old in self._guides if old.entries != guide.entries)][:MOST_GUIDES]

    def use(self, guide: Guide) -> None:
        self._guides.sort(key=lambda other: other is not guide)


def _changed(rates: Rates, before: Rates) -> bool:
    pairs = (rates.read / before.read, rates.write / before.write)
    return any(ratio > RATE_CHANGE or ratio < 1 / RATE_CHANGE for ratio in pairs)
