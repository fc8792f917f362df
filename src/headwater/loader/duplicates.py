"""Near-duplicates of a dataset, and what a loader does with them. `headwater.loader.finding` finds them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headwater.engine.inference import Failed
from headwater.errors import WrongUse
from headwater.select.importance import STALLED

MODES = ("auto", "drop", "stand_in")


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Groups of near-duplicates of one label: a number for each sample of a dataset, -1 for what is alone.

    As `mode` says, one of a group is visited for all and counts as many ("drop"); or a member that the cache
    holds is served for one that it does not, unless that was not truly read for `patience` epochs
    ("stand_in"); or the second where training waits for data and there is a cache, and the first elsewhere
    ("auto"). `failed` are samples that could not be looked at; of each store the first hundred.
    """

    groups: NDArray[np.int32]
    mode: str = "auto"
    patience: int = 3
    failed: tuple[Failed, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise WrongUse(f"mode is {self.mode!r}; choose from {', '.join(MODES)}")
        if self.patience < 0:
            raise WrongUse(f"patience is {self.patience}; it is a number of epochs, at least 0")

    def __len__(self) -> int:
        """Samples that are in a group."""
        return int(np.count_nonzero(self.groups >= 0))

    @property
    def redundant(self) -> int:
        """Samples that could be left out if one of each group stays."""
        grouped = self.groups[self.groups >= 0]
        return len(grouped) - len(np.unique(grouped))

    def serves(self, stalled: float, *, cached: bool) -> bool:
        """Whether members stand in for others, where training waits for data a share of its time."""
        if self.mode == "auto":
            return cached and stalled > STALLED
        return self.mode == "stand_in"
