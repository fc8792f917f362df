"""Whether selecting samples pays: what it costs an epoch against what it saves it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

ROUNDS = 3
"""Epochs that are looked at together."""


@dataclass(frozen=True)
class Spent:
    """One epoch: its seconds, the samples that it visited of all, and what was spent on selecting them.

    `waited` are seconds until a selection came that had not come in time, `fed` those that training stood
    still to hand over its weights, `link` those that the link was taken from training's own data.
    """

    seconds: float = 0.0
    visited: int = 0
    samples: int = 0
    waited: float = 0.0
    fed: float = 0.0
    link: float = 0.0

    @property
    def cost(self) -> float:
        return self.waited + self.fed + self.link

    @property
    def saved(self) -> float:
        """What the samples that were left out would have taken."""
        return (self.samples - self.visited) * self.seconds / max(1, self.visited)


class Worth:
    """Follows the epochs of a run; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._epochs: deque[Spent] = deque(maxlen=ROUNDS)
        self._spent = Spent()
        self._begun: float | None = None
        self.epoch_seconds = 0.0
        """What the last epoch took; 0 until there was one."""

    def begin(self, visited: int, samples: int) -> None:
        """An epoch begins that visits so many of the samples; what was spent before it, was for it."""
        self._spent = replace(self._spent, visited=visited, samples=samples)
        self._begun = self._clock()

    def spend(self, *, waited: float = 0.0, fed: float = 0.0, link: float = 0.0) -> None:
        """Seconds that selecting has cost."""
        spent = self._spent
        self._spent = replace(
            spent, waited=spent.waited + waited, fed=spent.fed + fed, link=spent.link + link
        )

    def end(self, *, selected: bool) -> None:
        """The epoch is over, if one had begun; it counts if somebody `selected` for it."""
        if self._begun is None:
            return
        self.epoch_seconds = max(0.0, self._clock() - self._begun - self._spent.fed)
        if selected:
            self._epochs.append(replace(self._spent, seconds=self.epoch_seconds))
        self._spent, self._begun = Spent(), None

    @property
    def verdict(self) -> str:
        """Why it does not pay, in a line; empty while it does, or while too little is known."""
        cost, saved = self._mean("cost"), self._mean("saved")
        if len(self._epochs) < ROUNDS or cost <= saved:
            return ""
        parts = ", ".join(f"{name} {self._mean(name):.3g} s" for name in ("waited", "fed", "link"))
        return f"selecting costs {cost:.3g} s an epoch ({parts}) and saves {saved:.3g} s"

    def _mean(self, name: str) -> float:
        total: float = sum(getattr(one, name) for one in self._epochs)
        return total / max(1, len(self._epochs))
