"""Which rank this process is, and of how many."""

from __future__ import annotations

from collections.abc import Callable

import torch

from headwater.errors import WrongUse


def find_rank(rank: int | None, world_size: int | None) -> Callable[[], tuple[int, int]]:
    """A function that answers (rank, world size): as given, or torch.distributed's at that moment."""
    if (rank is None) != (world_size is None):
        raise WrongUse(f"rank is {rank} and world_size is {world_size}; give both or neither")
    if rank is not None and world_size is not None:
        given = (rank, world_size)
        return lambda: given
    return _from_torch


def _from_torch() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
