"""Whether selecting samples pays: what it costs an epoch against what it saves it.

Scoring, export and the way of a proxy over the link take cores and bytes from training while it goes on. None
of that is measured by itself: an epoch that is slowed by it takes longer, and so saves less. How much less,
only epochs tell that have nothing beside them. The first one of a process does not: it finds caches empty and
has no plan yet, and by what it takes any later one would seem to save.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

ROUNDS = 3
"""Epochs that are looked at together."""
RECENT = 16
"""Epochs after which what a sample takes by itself is looked at anew."""
LEAST_SECONDS = 1.0
"""Lost in an epoch, from which on it is worth to end a selector: below, chance decides what clocks say."""
_COSTS = ("waited", "fed", "selected", "scored")


@dataclass(frozen=True)
class Spent:
    """One epoch: its seconds, those that one on everything would have taken, and what selecting cost besides.

    `waited` are seconds until a selection came that had not come in time, `fed` those that training stood
    still to hand over its weights, `selected` those in which the trainer itself chose, `scored` those in
    which it made what it chooses by; none of them is among `seconds`.
    """

    seconds: float
    whole: float
    waited: float = 0.0
    fed: float = 0.0
    selected: float = 0.0
    scored: float = 0.0

    @property
    def cost(self) -> float:
        return self.waited + self.fed + self.selected + self.scored

    @property
    def saved(self) -> float:
        """Below 0 for an epoch on fewer samples that took longer than one on all, with nothing beside it."""
        return self.whole - self.seconds


class Worth:
    """Follows the epochs of a run."""

    def __init__(self) -> None:
        self._epochs: deque[Spent] = deque(maxlen=ROUNDS)
        self._spent = dict.fromkeys(_COSTS, 0.0)
        self._quiet: float | None = None  # seconds of a sample, while nothing goes on beside training
        self._age = math.inf  # epochs since one has shown that
        self._cold = True  # until there was an epoch
        self.epoch_seconds = 0.0
        """What the last epoch took; 0 until there was one."""

    def spend(
        self, *, waited: float = 0.0, fed: float = 0.0, selected: float = 0.0, scored: float = 0.0
    ) -> None:
        """Seconds that training stood still for selecting, for the epoch that comes or goes on."""
        for name, seconds in zip(_COSTS, (waited, fed, selected, scored), strict=True):
            self._spent[name] += seconds

    def note(self, seconds: float, *, visited: int, samples: int, selected: bool, busy: bool) -> None:
        """An epoch is over, which visited so many of the samples; it counts if somebody `selected` for it.

        `busy` says that a selection was under way meanwhile. None counts before a quiet one that is not the
        first of all.
        """
        self._look(seconds / max(1, visited), quiet=not busy and not self._cold)
        self.epoch_seconds, self._cold = seconds, False
        if selected and self._quiet is not None and self._age < math.inf:
            self._epochs.append(Spent(seconds, samples * self._quiet, **self._spent))
        self._spent = dict.fromkeys(_COSTS, 0.0)

    def leave(self) -> None:
        """An epoch was resumed or left early, and tells nothing; but what is cold at first is so no more."""
        self._cold = False

    def _look(self, own: float, *, quiet: bool) -> None:
        """At what a sample took in an epoch; a quiet one takes the place of one of long ago."""
        if quiet and self._age > ROUNDS:
            self._epochs.clear()  # they were judged by what a sample took then
        # cold caches and what goes on beside training only slow it: such epochs bound a quiet one from above
        newer = quiet and self._age < math.inf
        self._quiet = own if newer or self._quiet is None else min(own, self._quiet)
        self._age = 0 if quiet else self._age + 1

    @property
    def wants_quiet(self) -> bool:
        """Whether an epoch with nothing beside it would tell more: at first, now and then, before it ends."""
        return not self._cold and self._age > (ROUNDS if self.lost >= LEAST_SECONDS else RECENT)

    @property
    def lost(self) -> float:
        """Seconds of an epoch that it costs more than it saves; 0 while it pays, or too little is known."""
        known = len(self._epochs) == ROUNDS
        return max(0.0, self._mean("cost") - self._mean("saved")) if known else 0.0

    @property
    def verdict(self) -> str:
        """Why it does not pay, in a line; empty while it does, nearly does, or too little is known lately."""
        if self.lost < LEAST_SECONDS or self._age > ROUNDS:
            return ""
        cost, saved = self._mean("cost"), self._mean("saved")
        parts = ", ".join(f"{name} {self._mean(name):.3g} s" for name in _COSTS if self._mean(name))
        took = f"which take {self._mean('seconds'):.3g} s of {self._mean('whole'):.3g}"
        return f"selecting costs {cost:.3g} s an epoch ({parts}) and saves {saved:.3g} s of epochs {took}"

    def _mean(self, name: str) -> float:
        total: float = sum(getattr(one, name) for one in self._epochs)
        return total / max(1, len(self._epochs))
