"""What every place for tensors that left memory can do, and what is under way to it or back."""

from __future__ import annotations

from typing import Protocol

import torch

from headwater.plan.memory import Rates
from headwater.train.memory.places import Extent


class Move(Protocol):
    """A tensor under way. Whoever has this keeps its memory from being given to anybody else."""

    @property
    def done(self) -> bool:
        """Whether nobody has to wait any more."""

    @property
    def waited(self) -> float | None:
        """Seconds by which it came too late for whoever waited; None as long as that is not known."""

    def wait(self) -> None:
        """What this thread computes next finds it done; raises what went wrong."""


class Tier(Protocol):
    """Out of memory and back. Not safe for threads: its user locks."""

    @property
    def rates(self) -> Rates:
        """Of both ways, as far as they were measured."""

    @property
    def has_memory(self) -> bool:
        """Whether there are places that are no part of a file."""

    def prepare(self, size: int) -> int:
        """Have room for so many bytes, all in all; how many there could be. Raises `SpillFailed`."""

    def reserve(self, size: int) -> Extent:
        """A place; raises `SpillFailed` if there is none."""

    def release(self, extent: Extent) -> None:
        """Give a place back."""

    def write(self, extent: Extent, tensor: torch.Tensor) -> Move:
        """Begin to copy the whole storage of a tensor."""

    def read(self, extent: Extent, device: torch.device) -> tuple[torch.Tensor, Move]:
        """Begin to bring it back, as bytes in a new storage."""

    def close(self) -> None:
        """After what is under way; nothing is left behind."""
