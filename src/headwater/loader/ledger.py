"""What a selector at the trainer costs and saves, and whether it goes on.

One that compares samples is there to save time, and takes some between epochs: it ends when it costs more
than it saves. Others choose in next to no time, or choose for another reason than time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headwater.loader.worth import Worth
from headwater.select.always import Always
from headwater.select.selecting import Selector


class Ledger:
    """Follows the epochs of one selector."""

    def __init__(self, selector: Selector, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.judges = "vectors" in selector.needs and not isinstance(selector, Always)
        """Whether it may come to an end at all."""
        self._clock, self._worth = clock, Worth()
        self._scored = 0.0

    @contextmanager
    def selecting(self) -> Iterator[None]:
        """Around what selects for the epoch that comes."""
        begun = self._clock()
        yield
        self._worth.spend(selected=self._clock() - begun)

    def scored(self, seconds: float) -> None:
        """In the epoch that goes on, so much was spent to know what the next selection is made by."""
        self._scored += seconds

    def trained(self, seconds: float, *, visited: int, samples: int) -> None:
        """A whole epoch is over, after so many seconds, in which scores were made too."""
        scored, self._scored = min(self._scored, seconds), 0.0
        self._worth.spend(scored=scored)
        chosen = visited < samples
        self._worth.note(seconds - scored, visited=visited, samples=samples, selected=chosen, busy=False)

    def left(self) -> None:
        """An epoch was resumed or left early, and tells nothing."""
        self._scored = 0.0
        self._worth.leave()

    @property
    def lost(self) -> float:
        """Seconds that the last epochs have cost more than they saved, each; 0 while too few are known."""
        return self._worth.lost

    @property
    def verdict(self) -> str:
        """What they cost and save, in a line; empty while it pays."""
        return self._worth.verdict
