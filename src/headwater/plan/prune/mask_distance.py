"""The published rule: the last masks are closer to each other than a fixed distance.

You et al. (ICLR 2020): a look each epoch, five masks in a queue, drawn when the newest differs from none of
the others in more than a tenth of all channels. The distance depends on the ratio (two random masks pass at
0.95), on the length of an epoch and on the learning rate (a cut makes masks stand still), and there is no
deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.errors import WrongUse
from headwater.plan.prune.distances import distance
from headwater.plan.prune.look import Look

LOOKS = 100
"""In a run, unless it is said how many steps lie between two."""


@dataclass(frozen=True)
class MaskDistance:
    """Draws when the newest of `window` masks is within `limit` of each other one.

    `every` is how many steps lie between two looks, an epoch's in the paper; None is a hundredth of the run.
    """

    limit: float = 0.1
    window: int = 5
    every: int | None = None

    def __post_init__(self) -> None:
        check_window(self.limit, self.window, self.every)

    @property
    def memory(self) -> float:
        return 0.0

    def interval(self, steps: int) -> int:
        return self.every or -(-steps // LOOKS)

    def decide(self, looks: Sequence[Look], *, ratio: float, steps: int) -> str | None:
        if len(looks) < self.window:
            return None
        newest = looks[-1].keep
        worst = max(distance(newest, look.keep) for look in looks[-self.window : -1])
        if worst > self.limit:
            return None
        return (
            f"the last {self.window} masks are within {worst:.3f} of the newest, allowed are {self.limit:g}"
        )


def check_window(limit: float, window: int, every: int | None) -> None:
    """Raise `WrongUse` for what no rule can go by."""
    if not 0 < limit < 1 or window < 2 or (every is not None and every < 1):
        raise WrongUse(
            f"limit {limit} must lie between 0 and 1, window {window} be at least 2, every {every} at least 1"
        )
