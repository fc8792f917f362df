"""Which samples one rank visits in an epoch, step by step: a function of a few integers.

A step takes `batch_size` samples for every rank. What is left at the end is shared out so that all
ranks take the same number of steps and every sample is visited once: a rest of at least one sample
per rank makes a last, smaller step; a rest of fewer widens the step before it by one sample for
some ranks. With `drop_last` the rest is not visited.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.engine.permutation import Permutation, Positions
from headwater.errors import WrongUse


@dataclass(frozen=True)
class Order:
    """The places of an epoch from `start` on, divided into steps and ranks."""

    permutation: Permutation
    batch_size: int
    start: int = 0
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise WrongUse(f"batch_size is {self.batch_size}; it must be at least 1")
        if not 0 <= self.rank < self.world_size:
            raise WrongUse(f"rank {self.rank} is outside a world of {self.world_size}")
        if not 0 <= self.start <= self.permutation.count:
            raise WrongUse(f"start {self.start} is outside an epoch of {self.permutation.count} samples")
        rest = self.permutation.count - self.start
        if not self.drop_last and 0 < rest < self.world_size:
            raise WrongUse(
                f"{rest} samples are left for {self.world_size} ranks; use fewer ranks or drop_last=True"
            )

    @property
    def width(self) -> int:
        """Samples that one full step takes over all ranks."""
        return self.batch_size * self.world_size

    @property
    def steps(self) -> int:
        """Steps that every rank takes."""
        full, rest = divmod(self.permutation.count - self.start, self.width)
        if self.drop_last or rest == 0:
            return full
        return full + 1 if rest >= self.world_size or full == 0 else full

    def bounds(self, step: int) -> tuple[int, int]:
        """The places that all ranks together take in a step."""
        if not 0 <= step < self.steps:
            raise WrongUse(f"step {step} is outside an epoch of {self.steps} steps")
        begin = self.start + step * self.width
        last = step == self.steps - 1 and not self.drop_last
        return begin, self.permutation.count if last else begin + self.width

    def take(self, step: int) -> Positions:
        """The positions of this rank's samples in a step."""
        begin, end = self.bounds(step)
        first, last = (
            begin + (end - begin) * share // self.world_size for share in (self.rank, self.rank + 1)
        )
        return self.permutation.take(first, last)

    def start_after(self, steps: int) -> int:
        """Where an order that goes on after this many steps has to start; the count when none is left."""
        if steps >= self.steps:
            return self.permutation.count
        return self.start + steps * self.width
