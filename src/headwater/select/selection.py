"""Which samples, with which weights: the outcome of selecting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.select.weights import effective_size

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Choice:
    """What a selector says: places that ascend, and if they do not count alike, how much.

    `weights` say how many samples each stands for, `chances` with which probability it was taken; None means
    one for all. `buckets` and `state` are for its next epoch. `reason` is one line.
    """

    places: Ints
    reason: str
    weights: NDArray[np.floating[Any]] | None = None
    chances: NDArray[np.floating[Any]] | None = None
    buckets: NDArray[np.uint8] | None = None
    state: Mapping[str, Any] = field(default_factory=dict)

    @property
    def counts_alike(self) -> bool:
        return self.weights is None and self.chances is None


@dataclass(frozen=True, eq=False)
class Selection:
    """The samples of one epoch: places in the dataset, which ascend, each with a weight; the mean is 1.

    `stand_ins` are places that are served instead, -1 where a sample is served itself; None: all are.
    """

    selector: str
    epoch: int
    places: Ints
    weights: Floats
    reason: str
    buckets: NDArray[np.uint8] | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    stand_ins: Ints | None = None

    def __len__(self) -> int:
        return len(self.places)

    @property
    def effective(self) -> float:
        """Samples of equal weight that would be worth as much, `(sum w)^2 / sum w^2` (Kish)."""
        return effective_size(self.weights)

    def stood_in(self, places: Ints) -> int:
        """For how many of these another is served."""
        if self.stand_ins is None:
            return 0
        return int(np.count_nonzero(self.stand_ins[np.searchsorted(self.places, places)] >= 0))

    @property
    def served(self) -> Ints:
        """Places that are really read."""
        if self.stand_ins is None:
            return self.places
        return np.where(self.stand_ins < 0, self.places, self.stand_ins)
