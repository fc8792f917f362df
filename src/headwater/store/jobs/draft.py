"""Labels in the making: what is known of each sample of a block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headwater.store.jobs.record import Failing

OPEN, KEPT, MADE, FAILED = range(4)
"""Nothing is known yet; the old label is proved to stay; the model was asked; it could not be."""
NONE = -1


class Draft:
    """Columns for the samples at these positions, which ascend.

    `before` is what a model said of a sample, as a class number of the dataset, and `times` when it did, in
    milliseconds since 1970; `chosen` is what this one says, as a place in its own list of classes; `NONE`
    where there is nothing.
    """

    def __init__(self, positions: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        self.positions, self.ids = positions, ids
        count = len(positions)
        self.state = np.full(count, OPEN, np.uint8)
        self.before, self.chosen = np.full((2, count), NONE, np.int32)
        self.models, self.times = np.zeros((2, count), np.int64)
        self.scores, self.margins = np.full((2, count), np.nan, np.float32)
        self._failures: dict[int, Failing] = {}

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def open(self) -> NDArray[np.bool_]:
        """Samples of which nothing is known yet."""
        found: NDArray[np.bool_] = self.state == OPEN
        return found

    def settle(
        self,
        places: NDArray[np.integer],
        state: int,
        *,
        labels: NDArray[np.int32],
        scores: NDArray[np.float32],
        margins: NDArray[np.float32],
    ) -> None:
        """The labels of some."""
        self.state[places], self.chosen[places] = state, labels
        self.scores[places], self.margins[places] = scores, margins

    def fail(self, place: int, why: Failing) -> None:
        self.state[place] = FAILED
        self._failures[place] = why

    def failures(self, part: slice) -> tuple[Failing, ...]:
        begin, end, _ = part.indices(len(self))
        return tuple(self._failures[place] for place in sorted(self._failures) if begin <= place < end)

    def counts(self, part: slice, classes: NDArray[np.int32]) -> dict[str, int]:
        """What became of the samples that the model was asked about, and of those that it could not be.

        `classes` are the dataset's numbers of the model's classes.
        """
        made, before = self.state[part] == MADE, self.before[part]
        same = before == classes[self.chosen[part]]  # nothing was chosen where nothing was made
        outcomes = {
            "labelled": made & (before == NONE),
            "unchanged": made & (before != NONE) & same,
            "changed": made & (before != NONE) & ~same,
            "failed": self.state[part] == FAILED,
        }
        return {name: int(samples.sum()) for name, samples in outcomes.items()}
