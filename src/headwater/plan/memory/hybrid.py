"""The hybrid policy: transfers that hide behind computing first, then whichever of the two is cheaper.

After Capuchin (Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning", ASPLOS 2020):
free time with both transfer times on exclusive lanes, bytes saved per second of recomputing with re-scoring.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain as chain_of
from itertools import combinations, product

from headwater.plan.memory.fetches import place_fetches
from headwater.plan.memory.lanes import NO_LEADS, first_needs, free_times, place_triggers
from headwater.plan.memory.plan import WAYS, Action, Choice, MemoryPlan, Rates
from headwater.plan.memory.recompute import chain, recompute_seconds
from headwater.plan.memory.record import AccessRecord
from headwater.plan.memory.simulate import Outcome, simulate

MOST_TRIALS = 20_000
"""Simulations that mending a plan may take, times tensors; from 50 to 2,000 of them."""


@dataclass(frozen=True)
class _Offer:
    place: int
    action: Action
    seconds: float
    size: int

    @property
    def worth(self) -> float:
        return self.size / max(self.seconds, 1e-9)


def make_plan(
    record: AccessRecord,
    *,
    budget: int,
    rates: Rates,
    leads: Mapping[int, float] = NO_LEADS,
    reserve: int = 0,
    ways: Collection[Action] = WAYS,
) -> MemoryPlan:
    """Keep what fits; of the rest swap or recompute what costs least, until the peak is within the budget.

    `reserve` bytes of the budget are left free, as feedback asks; no other `ways` are taken. Recomputing must
    be worth what it takes to know how. The plan that fits best comes back where none fits: `fits` says so.
    """
    found = _plan(record, budget, rates, leads, reserve, ways)
    if not found.bytes_of("recompute"):
        return found
    found = replace(found, overhead_seconds=found.overhead_seconds + record.noting_seconds)
    if not record.noting_seconds or "swap" not in ways:
        return found
    carried = _plan(record, budget, rates, leads, reserve, [way for way in ways if way != "recompute"])
    cheaper = carried.overhead_seconds <= found.overhead_seconds
    return carried if cheaper and carried.peak <= max(found.peak, budget - reserve) else found


def _plan(
    record: AccessRecord,
    budget: int,
    rates: Rates,
    leads: Mapping[int, float],
    reserve: int,
    ways: Collection[Action],
) -> MemoryPlan:
    before = record.peak()
    search = _Search(record, budget - reserve, rates, leads, tuple(way for way in WAYS if way in ways))
    if before > budget - reserve:
        search.choose()
        search.mend()
        search.fetch_if_crowded()
    return search.plan(budget, before)


class _Search:
    """Actions so far, and what they would do."""

    def __init__(
        self,
        record: AccessRecord,
        budget: int,
        rates: Rates,
        leads: Mapping[int, float],
        ways: tuple[Action, ...],
    ) -> None:
        self._record, self._budget, self._rates, self._leads = record, budget, rates, leads
        self._ways = ways
        self._actions: dict[int, Action] = {}
        self._reasons: dict[int, str] = {}
        self._tries = 0
        self._most = min(max(MOST_TRIALS // max(len(record.saved), 1), 50), 2000)
        self._best_so_far = Outcome()

    def choose(self) -> None:
        """Take offers at the worst moment until nothing passes the budget, or nothing is left to take."""
        while (outcome := self._play(self._actions)).peak > self._budget:
            missing = outcome.peak - self._budget
            taken = 0
            while taken < missing and (offer := self._best(outcome.peak_access)):
                self._take(offer)
                taken += offer.size
            if not taken and not ("swap" in self._ways and self._swap_instead(outcome.peak_access)):
                return

    def _swap_instead(self, moment: int) -> bool:
        """Making a tensor again needs its inputs beside it; at the peak it had better be fetched."""
        again = self._with("recompute")
        asked = self._record.at()[moment]
        wrong = (set(chain(self._record, asked, again) or ()) & again) or again
        for place in wrong:
            self._actions[place] = "swap"
            self._reasons[place] = "there is no room to make it again"
        return bool(wrong)

    def mend(self) -> None:
        """Change up to three choices at a time while the simulation shows that it helps; three starts."""
        self._descend(self._actions)
        for way in self._ways[1:]:
            if not self._is_settled:
                self._descend_from(way)

    def _descend(self, start: dict[int, Action]) -> None:
        self._actions, self._best_so_far = start, self._play(start)
        while self._improve():
            pass

    def _improve(self) -> bool:
        """Make the first change that helps; whether there was one."""
        for change in self._changes():
            if self._is_settled:  # there may be very many more
                return False
            if self._improves(change):
                return True
        return False

    def _descend_from(self, way: Action) -> None:
        """With everything out one way; what was found before stays, if it is better."""
        found = self._actions, self._reasons, self._best_so_far
        again = {
            place for place in self._record.saved if recompute_seconds(self._record, place, ()) is not None
        }
        able = again if way == "recompute" else self._record.saved
        self._reasons = dict.fromkeys(able, "cheaper when all choices are played together")
        self._descend(dict.fromkeys(able, way))
        if self._rank(found[2]) <= self._rank(self._best_so_far):
            self._actions, self._reasons, self._best_so_far = found

    def fetch_if_crowded(self) -> None:
        """Where no plan fits, what cannot stay is decided as it goes: a fetch needs less room than making."""
        if self._rank(self._best_so_far)[0] and "swap" in self._ways:
            for place in self._with("recompute"):
                self._actions[place] = "swap"
                self._reasons[place] = "there is no room to make it again"

    @property
    def _is_settled(self) -> bool:
        """Whether nothing can be better, or enough was tried."""
        return self._tries >= self._most or self._rank(self._best_so_far) <= (0, 0.0)

    def _changes(self) -> Iterator[dict[int, Action]]:
        """Other ways for each tensor, the largest first; one back for one that leaves; any two or three."""
        places = sorted(self._record.saved, key=lambda place: -self._record.tensors[place].size)
        out = [place for place in places if self._actions.get(place, "keep") != "keep"]
        for place in places:
            yield from (
                {place: action} for action in self._ways if action != self._actions.get(place, "keep")
            )
        for gone, kept in product(out, (place for place in places if place not in out)):
            yield from ({gone: "keep", kept: action} for action in self._ways if action != "keep")
        for few in chain_of(combinations(places, 2), combinations(places, 3)):
            yield from (dict(zip(few, ways, strict=True)) for ways in product(self._ways, repeat=len(few)))

    def _improves(self, change: dict[int, Action]) -> bool:
        """Make the change if the plan stays within the budget, or comes nearer, and costs less."""
        if not all(self._can(place, way) for place, way in change.items()):
            return False
        other, best = self._play(self._actions | change), self._best_so_far
        if self._rank(other) >= self._rank(best):
            return False
        self._actions |= change
        self._reasons |= dict.fromkeys(change, "cheaper when all choices are played together")
        self._best_so_far = other
        return True

    def _rank(self, outcome: Outcome) -> tuple[int, float]:
        return max(outcome.peak - self._budget, 0), outcome.overhead_seconds

    def plan(self, budget: int, before: int) -> MemoryPlan:
        outcome = self._play(self._actions)
        triggers = place_fetches(
            self._record, self._actions, budget=self._budget, rates=self._rates, leads=self._leads
        )
        choices = tuple(
            Choice(
                place,
                self._actions.get(place, "keep"),
                self._record.tensors[place].size,
                triggers.get(place, -1),
                self._reasons.get(place, "fits"),
            )
            for place in self._record.saved
        )
        reason = _reason(before, budget, outcome, bool(self._actions))
        return MemoryPlan(choices, budget, before, outcome.peak, outcome.overhead_seconds, reason)

    def _best(self, moment: int) -> _Offer | None:
        """A transfer that hides completely, the one with most time left; else most bytes per second."""
        places = [place for place in self._record.saved if self._helps(place, moment)]
        free = free_times(self._record, self._with("swap"), self._rates)
        hidden = [place for place in places if free[place] >= 0 and "swap" in self._ways]
        if hidden and not self._rates.taken:
            place = max(hidden, key=lambda place: free[place])
            return _Offer(place, "swap", 0.0, self._record.tensors[place].size)
        offers = [offer for place in places for offer in self._offers(place, free[place])]
        return max(offers, key=lambda offer: offer.worth, default=None)

    def _offers(self, place: int, free: float) -> list[_Offer]:
        size = self._record.tensors[place].size
        carried = max(0.0, -free) + self._rates.carry_seconds(size)
        costs = {
            "swap": carried,
            "recompute": recompute_seconds(self._record, place, self._with("recompute")),
        }
        found = ((way, costs.get(way)) for way in self._ways)
        return [_Offer(place, way, seconds, size) for way, seconds in found if seconds is not None]

    def _helps(self, place: int, moment: int) -> bool:
        """Whether it is held at this moment, and by nobody who needs it just then."""
        tensor = self._record.tensors[place]
        if self._actions.get(place, "keep") != "keep" or tensor.saved[0] > moment:
            return False
        nodes = self._record.nodes
        return tensor.used[-1] >= moment and all(nodes[use] != nodes[moment] for use in tensor.used)

    def _can(self, place: int, action: Action) -> bool:
        if action != "recompute":
            return True
        return recompute_seconds(self._record, place, self._with("recompute")) is not None

    def _take(self, offer: _Offer) -> None:
        self._actions[offer.place] = offer.action
        told = {
            "swap": "the transfer hides" if not offer.seconds else f"transfer costs {offer.seconds:.2g} s",
            "recompute": f"making it again costs {offer.seconds:.2g} s",
        }
        self._reasons[offer.place] = told[offer.action]

    def _with(self, action: Action) -> set[int]:
        return {place for place, chosen in self._actions.items() if chosen == action}

    def _triggers(self, actions: Mapping[int, Action]) -> dict[int, int]:
        needs = first_needs(self._record, actions)
        return place_triggers(self._record, needs, self._rates, self._leads)

    def _play(self, actions: Mapping[int, Action]) -> Outcome:
        self._tries += 1
        return simulate(
            self._record, actions, self._triggers(actions), budget=self._budget, rates=self._rates
        )


def _reason(before: int, budget: int, outcome: Outcome, changed: bool) -> str:
    if not changed:
        return "everything fits" if before <= budget else "nothing can leave at the peak"
    if outcome.peak > budget:
        return f"one step of the backward pass alone needs {outcome.peak:,} bytes"
    return f"{before - budget:,} bytes too many"
