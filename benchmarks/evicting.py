"""On-line rules on a recorded trace: the least recently used tensor goes, or the one of DTR's score."""

from __future__ import annotations

from collections.abc import Callable

from headwater.plan.memory import AccessRecord, Rates, eviction_score
from headwater.plan.memory.recompute import chain
from headwater.plan.memory.record import last_of_node

Rule = Callable[["Trace", int], float]


class Trace:
    """Plays a record; when the budget is passed, the tensor with the least score leaves."""

    def __init__(
        self, record: AccessRecord, budget: int, rates: Rates, rule: Rule, *, recompute: bool
    ) -> None:
        self.record, self.rates = record, rates
        self.touched: dict[int, float] = {}
        self.now = 0.0
        self._budget, self._rule, self._recompute = budget, rule, recompute
        self._here: set[int] = set()
        self._gone: set[int] = set()
        self._written: set[int] = set()
        self.overhead = 0.0
        self.peak = 0
        self._knows_how = 0.0
        """Seconds that noting takes, once something was made again: plans are charged with it too."""

    def run(self) -> float | None:
        """Seconds that are added; None if the budget was passed all the same."""
        at, ends = self.record.at(), last_of_node(self.record.nodes)
        leaving: dict[int, list[int]] = {}
        for access, time in enumerate(self.record.times):
            self.now, place = time, at[access]
            if place >= 0:
                self._touch(place, set() if access in self.record.tensors[place].saved else {place})
                if self.record.tensors[place].used[-1:] == (access,):
                    leaving.setdefault(ends[access], []).append(place)
            for gone in leaving.pop(access, ()):
                self._here.discard(gone)
        return self.overhead + self._knows_how if self.peak <= self._budget else None

    def seconds_back(self, place: int) -> float:
        """What it costs to let it go: its chain from what is here, or a transfer out and back."""
        again = self._chain_seconds(place)
        size = self.record.tensors[place].size
        swap = size / self.rates.read + (0 if place in self._written else size / self.rates.write)
        return swap if again is None else again if self._recompute else swap

    def _chain_seconds(self, place: int) -> float | None:
        made = chain(self.record, place, self._gone) if self._recompute else None
        return None if made is None else sum(self.record.tensors[step].seconds for step in made)

    def _touch(self, place: int, pinned: set[int]) -> None:
        self.touched[place] = self.now
        if place in self._here:
            return
        size = self.record.tensors[place].size
        self._here.add(place)
        while self._held() > self._budget and (victims := self._here - pinned - {place}):
            self._evict(min(victims, key=lambda victim: self._rule(self, victim)))
        if place in self._gone:
            self._gone.discard(place)
            again = None if place in self._written else self._chain_seconds(place)
            self.overhead += size / self.rates.read if again is None else again
            self._knows_how = self._knows_how if again is None else self.record.noting_seconds
        self.peak = max(self.peak, self._held())

    def _evict(self, place: int) -> None:
        if self._chain_seconds(place) is None and place not in self._written:
            self._written.add(place)
            self.overhead += self.record.tensors[place].size / self.rates.write
        self._here.discard(place)
        self._gone.add(place)

    def _held(self) -> int:
        return sum(self.record.tensors[place].size for place in self._here)


def least_recently_used(trace: Trace, place: int) -> float:
    return trace.touched[place]


def rematerialise(trace: Trace, place: int) -> float:
    """DTR's score."""
    stale = trace.now - trace.touched[place]
    size = trace.record.tensors[place].size
    return eviction_score(seconds=trace.seconds_back(place), size=size, stale_seconds=stale)
