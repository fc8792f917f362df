"""The outcome of planning a fine-tuning: cut, runs, stores, what they are expected to take, and why."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.plan.finetune.cut import Cut
from headwater.plan.finetune.stages import Stages


@dataclass(frozen=True)
class Option:
    """A cut that was looked at: what it would take with all stores, and whether it was refused."""

    cut: Cut
    seconds: float
    bytes: float
    ships_more: bool
    """More bytes than the images themselves."""


@dataclass(frozen=True)
class FinetunePlan:
    """How to run, and the prediction for it."""

    cut: Cut
    stores: int
    runs: int
    stages: Stages
    bytes: float
    """What will cross the link."""
    drift: float
    """How far from the last run's loss a run may begin, see `Convergence`."""
    options: tuple[Option, ...]
    reason: str
    note: str = ""
    """What else to know before it begins, in a line."""

    @property
    def seconds(self) -> float:
        """Predicted for the whole."""
        return self.stages.seconds(self.runs)

    @property
    def seconds_without_runs(self) -> float:
        """Predicted if training began when all features are there."""
        return self.stages.seconds(1)

    def __str__(self) -> str:
        """What is expected, in words and numbers."""
        times = ", ".join(f"{name} {format_seconds(value)}" for name, value in self.stages.times.items())
        lines = [
            f"cut at {self.cut.name}: {_count(self.stores, 'store')}, {_count(self.runs, 'run')}; "
            f"{self.reason}",
            f"expected: {format_seconds(self.seconds)} in all ({times}; the {self.stages.bottleneck} "
            f"{'are' if self.stages.bottleneck == 'stores' else 'is'} the slowest), "
            f"{_bytes(self.bytes)} over the link",
        ]
        if self.runs > 1:
            lines.append(
                f"in one run it would be {format_seconds(self.seconds_without_runs)}; with {self.runs}, "
                f"a run begins within {self.drift:.2g} of the loss of the one before it"
            )
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)


def format_seconds(value: float) -> str:
    """In the unit that a person would choose."""
    if value < 600:
        return f"{value:.3g} s"
    return f"{value / 60:,.0f} min" if value < 36_000 else f"{value / 3600:,.1f} h"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
