"""Our rule: masks that agree far better than by chance, while the learning rate is high; else the deadline.

What You et al. (ICLR 2020) leave open: distances are shares of what chance would give, 2 p (1 - p), so that
one limit serves every ratio; looks come at shares of the run, not of the data; masks that stand still
because the learning rate is low tell nothing, so only looks near its peak count; masks of scales that are
all equal tell nothing either; and a run that does not settle still gets a ticket that can pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.errors import WrongUse
from headwater.plan.prune.distances import by_chance, distance
from headwater.plan.prune.look import Look
from headwater.plan.prune.mask_distance import LOOKS, check_window

MOST_UNDECIDED = 0.01
"""The share of channels that equal scales may leave open in a look that counts."""


@dataclass(frozen=True)
class SettledMask:
    """Draws when the newest of `window` masks is within `limit` of each other one, 1 being chance.

    Looks count at `least_rate` or more of the highest learning rate so far. `memory` is what a look's
    scales keep of those before, so that a mask is not that of one noisy moment. At the first look once the
    share `deadline` of the run is done, the ticket is drawn whatever the masks do. `every` is how many steps
    lie between two looks; None is a hundredth of the run.
    """

    limit: float = 0.2
    window: int = 5
    deadline: float = 0.2
    least_rate: float = 0.5
    memory: float = 0.5
    every: int | None = None

    def __post_init__(self) -> None:
        check_window(self.limit, self.window, self.every)
        if not 0 < self.deadline <= 1 or not 0 <= self.least_rate <= 1 or not 0 <= self.memory < 1:
            raise WrongUse(
                f"deadline {self.deadline}, least_rate {self.least_rate} and memory {self.memory} are shares"
            )

    def interval(self, steps: int) -> int:
        return self.every or -(-steps // LOOKS)

    def decide(self, looks: Sequence[Look], *, ratio: float, steps: int) -> str | None:
        settled = self._settled(looks, ratio)
        if settled is not None:
            return settled
        if looks[-1].step >= self.deadline * steps:
            return f"the deadline, {self.deadline:.0%} of {steps:,} steps; {self._why_not(looks, ratio)}"
        return None

    def _settled(self, looks: Sequence[Look], ratio: float) -> str | None:
        if len(looks) < self.window or self._doubt(looks):
            return None
        worst = self._worst(looks, ratio)
        if worst > self.limit:
            return None
        return (
            f"the last {self.window} masks are within {worst:.2f} of the newest, 1 being chance; "
            f"allowed are {self.limit:g}"
        )

    def _worst(self, looks: Sequence[Look], ratio: float) -> float:
        newest = looks[-1].keep
        recent = looks[-self.window : -1]
        return max((distance(newest, look.keep) for look in recent), default=1.0) / by_chance(ratio)

    def _doubt(self, looks: Sequence[Look]) -> str:
        """Why masks that agree would tell nothing; empty if they would."""
        recent, peak = looks[-self.window :], max(look.rate for look in looks)
        if min(look.rate for look in recent) < self.least_rate * peak:
            return f"the learning rate was cut, from {peak:g} to {recent[-1].rate:g}"
        if max(look.undecided for look in recent) > MOST_UNDECIDED:
            return "scales were equal"
        return ""

    def _why_not(self, looks: Sequence[Look], ratio: float) -> str:
        if len(looks) < self.window:
            return f"{len(looks)} looks are too few"
        return (
            self._doubt(looks)
            or f"the last {self.window} masks were up to {self._worst(looks, ratio):.2f} apart"
        )
