"""What a memory budget did, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from headwater.plan.memory import MemoryPlan


@dataclass(frozen=True)
class MemoryReport:
    """The last whole iteration, and fetches over all guided ones. Bytes, and seconds.

    `peak_before` is what plain training would have held, `peak` what was held. `late_fetches` are those that
    backward had to wait for. `disk_closed`: nothing goes to the file, as it is full or may not be used.
    """

    budget: int
    iterations: int
    guided: int
    peak_before: int
    peak: int
    swapped: int
    recomputed: int
    unplanned: int
    stall_seconds: float
    recompute_seconds: float
    fetches: int
    late_fetches: int
    fetches_in_all: int
    late_fetches_in_all: int
    disk_closed: bool
    plan: MemoryPlan | None
    seconds: tuple[float, ...]
    held_before: tuple[int, ...]
    held: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON can hold."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    def __str__(self) -> str:
        """A few lines."""
        if not self.iterations:
            return f"memory budget of {_say(self.budget)}: no iteration yet"
        moved = f"swapped {_say(self.swapped)}, recomputed {_say(self.recomputed)}"
        waited = f"stalls {self.stall_seconds:.3f} s, recomputing {self.recompute_seconds:.3f} s"
        lines = [
            f"memory budget of {_say(self.budget)}: peak {_say(self.peak_before)} > {_say(self.peak)}",
            f"  {moved}, not planned {_say(self.unplanned)}",
            f"  {waited}, late {self.late_fetches:,} of {self.fetches:,} fetches",
            f"  {self.iterations:,} iterations, {self.guided:,} by a plan",
        ]
        lines += ["  nothing more goes to the disk"] if self.disk_closed else []
        return "\n".join([*lines, *([f"  {self.plan}"] if self.plan else [])])


def _say(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
