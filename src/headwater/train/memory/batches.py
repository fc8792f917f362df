"""The largest batch that fits into a memory budget, by trying."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import torch

from headwater.errors import MemoryTooSmall, WrongUse
from headwater.train.memory.budget import MemoryBudget, memory_budget
from headwater.train.memory.shortage import is_out_of_memory, is_vague

RUNS = 2
"""Steps that a size must pass: one is measured, the next goes by a plan."""


def max_batch(
    step: Callable[[int], object],
    budget: int | str,
    *,
    start: int = 1,
    most: int = 2**20,
    device: str | torch.device | None = None,
    host: int | str | None = None,
    spill: str | os.PathLike[str] | None = None,
) -> int:
    """The largest size for which `step(size)`, a forward and a backward pass, stays within the budget.

    Sizes are doubled from `start`, then halved in between. A size does not fit if one step of its backward
    pass needs more than the budget, or if memory runs out. 0 if not even `start` fits. What the steps do to
    the model is the caller's to undo.
    """
    if not 1 <= start <= most:
        raise WrongUse(f"sizes from {start} to {most} are none; start at 1 or more, below the most")

    def fits(size: int) -> bool:
        context = memory_budget(budget, device=device, host=host, spill=spill)
        return _fits(step, size, context, first=size == start)

    good, bad = 0, start
    while bad <= most and fits(bad):
        good, bad = bad, min(bad * 2, most) if bad < most else most + 1
    while bad - good > 1 and bad <= most + 1 and good:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _fits(step: Callable[[int], object], size: int, budget: MemoryBudget, *, first: bool) -> bool:
    try:
        with budget:
            for _ in range(RUNS):
                step(size)
    except MemoryTooSmall:
        return False
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error) or (first and is_vague(error)):
            raise
        return False
    finally:
        gc.collect()
    return True
