"""The outcome: keep, swap or recompute each tensor, what that should cost, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Action = Literal["keep", "swap", "recompute"]
WAYS: tuple[Action, ...] = ("keep", "swap", "recompute")


@dataclass(frozen=True)
class Rates:
    """Bytes per second out of memory and back; each way is a lane that carries one tensor at a time.

    `taken` is the share of a transfer's time that computing loses: nothing where hardware carries, up to all
    of it where a core that would compute does.
    """

    write: float
    read: float
    taken: float = 0.0

    def carry_seconds(self, size: int) -> float:
        """What computing loses by carrying so many bytes out and back, whether or not anybody waits."""
        return self.taken * (size / self.write + size / self.read)


@dataclass(frozen=True)
class Choice:
    """What happens to one tensor of the record. `trigger` is the access at which its fetch is issued."""

    tensor: int
    action: Action
    size: int
    trigger: int = -1
    reason: str = ""


@dataclass(frozen=True)
class MemoryPlan:
    """A choice for each tensor that autograd keeps; bytes and seconds of one iteration, as predicted."""

    choices: tuple[Choice, ...]
    budget: int
    peak_before: int
    peak: int
    overhead_seconds: float
    reason: str

    @property
    def fits(self) -> bool:
        """Whether the predicted peak is within the budget."""
        return self.peak <= self.budget

    def bytes_of(self, action: Action) -> int:
        """Bytes of all tensors with this action."""
        return sum(choice.size for choice in self.choices if choice.action == action)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON can hold."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    def __str__(self) -> str:
        """How many of each, the prediction, and the reason."""
        counts = Counter(choice.action for choice in self.choices)
        told = ", ".join(f"{action} {counts[action]:,}" for action in WAYS)
        peaks = f"peak {self.peak_before:,} > {self.peak:,} of {self.budget:,} bytes"
        return f"{told}; {peaks}, {self.overhead_seconds:.3f} s more: {self.reason}"
