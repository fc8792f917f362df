"""The outcome of planning: an option per sample, what it is expected to change, and why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.plan.offload.load import Load
from headwater.plan.offload.uniform import Offload
from headwater.plan.offload.workload import Choice


@dataclass(frozen=True, eq=False)
class OffloadPlan:
    """`choice[i]` is the place of sample i's option in `ways`; loads are of one epoch, before and after."""

    policy: str
    ways: tuple[Offload, ...]
    choice: Choice
    before: Load
    after: Load
    reason: str

    def __post_init__(self) -> None:
        self.choice.setflags(write=False)

    def __len__(self) -> int:
        return len(self.choice)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Samples per option."""
        # by the block: bincount would make eight bytes of every one
        found = np.zeros(len(self.ways), np.int64)
        for start in range(0, len(self.choice), 1 << 20):
            found += np.bincount(self.choice[start : start + (1 << 20)], minlength=len(self.ways))
        return found

    @property
    def offloaded(self) -> float:
        """Share of the samples that are not sent as they are."""
        return 1 - int(self.counts[0]) / len(self) if len(self) else 0.0

    @property
    def speedup(self) -> float:
        """Predicted time without the plan over that with it."""
        return self.before.seconds / self.after.seconds if self.after.seconds > 0 else 1.0

    @property
    def saving(self) -> float:
        """Bytes without the plan over bytes with it."""
        return self.before.bytes / self.after.bytes if self.after.bytes > 0 else 1.0
