"""The largest batch that fits."""

from __future__ import annotations

import pytest
import torch

import headwater as hw
from budgets import loss_of, make
from headwater.errors import MemoryTooSmall, WrongUse
from headwater.train.memory.shortage import is_out_of_memory


def test_the_largest_size_is_found() -> None:
    net, _ = make("residual")
    seen: list[int] = []

    def step(size: int) -> None:
        seen.append(size)
        loss_of(net, torch.randn(size, 3, 16, 16)).backward()

    most = hw.max_batch(step, 3 * 16 * 16 * 16 * 4 * 5)
    assert most >= 5  # one step of backward needs two or three tensors, the budget holds fifteen
    assert len(seen) < 40

    def larger(size: int) -> bool:
        try:
            with hw.memory_budget(3 * 16 * 16 * 16 * 4 * 5):
                step(size)
        except MemoryTooSmall:
            return False
        return True

    assert larger(most)
    assert not larger(most + 1)


def test_bounds_are_kept() -> None:
    calls: list[int] = []
    assert hw.max_batch(calls.append, "1MiB", start=3, most=20) == 20
    assert max(calls) == 20
    with pytest.raises(WrongUse):
        hw.max_batch(calls.append, "1MiB", start=0)


def test_running_out_of_memory_is_not_fitting_and_other_errors_are_raised() -> None:
    def step(size: int) -> None:
        if size > 6:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")

    assert hw.max_batch(step, "1MiB") == 6
    assert hw.max_batch(step, "1MiB", start=7) == 0

    def broken(size: int) -> None:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        hw.max_batch(broken, "1MiB")

    def vague(size: int) -> None:
        if size > 6:
            raise RuntimeError("could not create a primitive")

    assert hw.max_batch(vague, "1MiB") == 6
    with pytest.raises(RuntimeError, match="primitive"):
        hw.max_batch(vague, "1MiB", start=7)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
