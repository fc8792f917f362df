"""Batches that were planned together, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from headwater.measure.profile import Seen
from headwater.plan.offload import OffloadPlan

_LATE = 1.3  # times what a plan says
_DOUBTFUL = 0.8  # of what files would take, by the plan


@dataclass
class Found:
    """What came from one store."""

    samples: int = 0
    asked: int = 0
    pushed_back: int = 0
    bytes: int = 0
    store_seconds: float = 0.0
    trainer_seconds: float = 0.0

    def add(self, seen: Seen, rows: NDArray[np.bool_]) -> None:
        self.samples += int(rows.sum())
        self.asked += int((seen.ways[rows] > 0).sum())
        self.pushed_back += int((~seen.done & seen.jpeg)[rows].sum())
        self.bytes += int(seen.bytes[rows].sum())
        self.store_seconds += float(seen.store_seconds[rows].sum())
        self.trainer_seconds += float(seen.trainer_seconds[rows].sum())


@dataclass(eq=False)
class Stretch:
    """Tasks that were planned together; `left` of them have not been handed over yet."""

    epoch: int
    phase: str
    owners: NDArray[np.intp]
    ways: NDArray[np.uint8]
    left: int
    found: Sequence[Found]
    plans: dict[int, OffloadPlan] = field(default_factory=dict)

    @property
    def is_relievable(self) -> bool:
        """Whether something is the slowest that offloading can help."""
        return any(plan.before.bottleneck in ("link", "trainer CPU") for plan in self.plans.values())

    def is_late(self, seconds: float) -> bool:
        """Whether it took clearly longer than its plans say."""
        return seconds > _LATE * max((plan.after.seconds for plan in self.plans.values()), default=np.inf)

    def is_doubtful(self, seconds: float) -> bool:
        """Whether it was late, and files might have been as quick."""
        files = max((plan.before.seconds for plan in self.plans.values()), default=np.inf)
        return bool(self.ways.any()) and self.is_late(seconds) and seconds > _DOUBTFUL * files


def join(parts: Sequence[Seen]) -> Seen:
    """Samples of one epoch together."""
    columns = {
        column.name: np.concatenate([getattr(part, column.name) for part in parts])
        for column in fields(Seen)
        if column.name != "epoch"
    }
    return Seen(epoch=parts[0].epoch, **columns)
