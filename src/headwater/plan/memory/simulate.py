"""A plan played through on a virtual clock: bytes at every access, and the seconds that it adds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headwater.plan.memory.plan import Action, Rates
from headwater.plan.memory.record import AccessRecord, last_of_node


@dataclass
class Outcome:
    """What a plan would do: `held` are the most bytes at each access, `late` the fetches waited for."""

    peak: int = 0
    peak_access: int = 0
    stall_seconds: float = 0.0
    recompute_seconds: float = 0.0
    carry_seconds: float = 0.0
    late: int = 0
    held: list[int] = field(default_factory=list)

    @property
    def overhead_seconds(self) -> float:
        return self.stall_seconds + self.recompute_seconds + self.carry_seconds


def simulate(
    record: AccessRecord,
    actions: Mapping[int, Action],
    triggers: Mapping[int, int],
    *,
    budget: int,
    rates: Rates,
) -> Outcome:
    """Play the iteration: lanes carry one tensor at a time, and a fetch waits until there is room for it."""
    return _Play(record, actions, triggers, budget, rates).run()


class _Play:
    """The state of the virtual machine between two accesses."""

    def __init__(
        self,
        record: AccessRecord,
        actions: Mapping[int, Action],
        triggers: Mapping[int, int],
        budget: int,
        rates: Rates,
    ) -> None:
        self._record, self._actions, self._budget, self._rates = record, actions, budget, rates
        self._issue = _by_access(triggers)
        self._ends = last_of_node(record.nodes)
        self._now = 0.0
        self._held = 0
        self._top = 0
        self._here: set[int] = set()
        self._writing: deque[tuple[float, int]] = deque()
        self._reading: dict[int, float] = {}
        self._waiting: list[int] = []
        self._write_free = self._read_free = 0.0
        self._leaving: dict[int, list[int]] = {}
        self._outcome = Outcome()

    def run(self) -> Outcome:
        at, record = self._record.at(), self._record
        for access, time in enumerate(record.times):
            self._now = time + self._outcome.overhead_seconds
            self._top = self._held
            self._land()
            place = at[access]
            if place >= 0:
                saving = access in record.tensors[place].saved
                self._save(place, access) if saving else self._use(place, access)
            self._note(access)
            for gone in self._leaving.pop(access, ()):
                self._drop(gone)
        return self._outcome

    def _save(self, place: int, access: int) -> None:
        tensor, action = self._record.tensors[place], self._actions.get(place, "keep")
        last = access == tensor.saved[-1]
        if access == tensor.saved[0] and not (last and action == "recompute"):
            self._room(tensor.size)
            self._add(place)
        if last and action == "recompute":
            self._drop(place)
        elif last and action == "swap":
            self._write_free = max(self._now, self._write_free) + tensor.size / self._rates.write
            self._writing.append((self._write_free, place))
            self._carry(self._rates.taken * tensor.size / self._rates.write)
        if not tensor.used:
            self._leaving.setdefault(self._ends[access], []).append(place)

    def _use(self, place: int, access: int) -> None:
        self._waiting += [other for other in self._issue.get(access, ()) if other != place]
        self._bring(place)
        self._fetch_waiting()
        tensor = self._record.tensors[place]
        if access == tensor.used[-1]:
            self._leaving.setdefault(self._ends[access], []).append(place)

    def _bring(self, place: int) -> None:
        """Have the tensor in memory now, however it comes."""
        if place in self._reading:
            self._wait(self._reading.pop(place), late=True)
        if place in self._here:
            self._stay(place)
            return
        if self._actions.get(place, "keep") == "swap" and self._record.tensors[place].saved:
            self._room(self._record.tensors[place].size)
            self._read(place)
            self._add(place)
            self._wait(self._reading.pop(place), late=True)
        else:
            self._make(place)

    def _stay(self, place: int) -> None:
        """What is still on its way out when it is wanted back does not leave."""
        self._writing = deque(item for item in self._writing if item[1] != place)

    def _make(self, place: int) -> None:
        """Run the operation again on its parents; those that autograd does not keep go at once."""
        tensor = self._record.tensors[place]
        passing = [parent for parent in tensor.parents or () if parent not in self._here]
        for parent in passing:
            self._bring(parent)
        self._room(tensor.size)
        self._add(place)
        self._outcome.recompute_seconds += tensor.seconds
        self._now += tensor.seconds
        for parent in passing:
            if not self._record.tensors[parent].saved:
                self._drop(parent)

    def _fetch_waiting(self) -> None:
        while self._waiting:
            place = self._waiting[0]
            size = self._record.tensors[place].size
            self._stay(place)
            if place not in self._here and place not in self._reading:
                if self._held + size > self._budget:
                    return
                self._read(place)
                self._add(place)
            self._waiting.pop(0)

    def _read(self, place: int) -> None:
        size = self._record.tensors[place].size
        self._read_free = max(self._now, self._read_free) + size / self._rates.read
        self._reading[place] = self._read_free
        self._carry(self._rates.taken * size / self._rates.read)

    def _carry(self, seconds: float) -> None:
        self._outcome.carry_seconds += seconds
        self._now += seconds

    def _room(self, size: int) -> None:
        """Wait for transfers under way, as long as they help."""
        while self._held + size > self._budget and self._writing:
            end, place = self._writing.popleft()
            self._wait(end)
            self._drop(place)

    def _land(self) -> None:
        while self._writing and self._writing[0][0] <= self._now:
            self._drop(self._writing.popleft()[1])
        for place in [place for place, end in self._reading.items() if end <= self._now]:
            del self._reading[place]

    def _wait(self, until: float, *, late: bool = False) -> None:
        if until > self._now:
            self._outcome.stall_seconds += until - self._now
            self._outcome.late += late
            self._now = until

    def _add(self, place: int) -> None:
        self._here.add(place)
        self._held += self._record.tensors[place].size
        self._top = max(self._top, self._held)

    def _drop(self, place: int) -> None:
        if place in self._here:
            self._here.discard(place)
            self._held -= self._record.tensors[place].size

    def _note(self, access: int) -> None:
        self._outcome.held.append(self._top)
        if self._top > self._outcome.peak:
            self._outcome.peak, self._outcome.peak_access = self._top, access


def _by_access(triggers: Mapping[int, int]) -> dict[int, Sequence[int]]:
    found: dict[int, list[int]] = {}
    for place, access in triggers.items():
        found.setdefault(access, []).append(place)
    return {access: places for access, places in found.items()}
