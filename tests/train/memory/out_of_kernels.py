"""A process in which oneDNN once had no memory for a kernel trains within a budget; prints JSON.

Started by test_apart.py: what oneDNN remembers of it cannot be taken back.
"""

from __future__ import annotations

import json
import resource
from pathlib import Path

import torch
from torch import Tensor, nn

import headwater as hw
from headwater.train.memory.shortage import is_vague

STEP = 2**18
MOST = 200


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.AvgPool2d(6))


def train(model: nn.Module, size: int = 8) -> list[Tensor]:
    torch.manual_seed(1)
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(size, 3, 32, 32)).square().mean().backward()
    return [one.grad for one in model.parameters() if one.grad is not None]


def makes_kernels(rows: int) -> bool:
    """A shape that was not seen before needs a kernel that was not made before."""
    try:
        nn.functional.conv2d(torch.randn(rows, 32, 24, 24), torch.randn(16, 32, 3, 3))
    except (MemoryError, RuntimeError) as error:
        return not is_vague(error)
    return True


def run_out() -> bool:
    """Allow a little more until it is too little for a kernel alone; whether it came to that."""
    for count in range(MOST):
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + count * STEP, resource.RLIM_INFINITY))
        made = makes_kernels(64 + count)
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
        if not made:
            return True
    return False


def data_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))


def main() -> dict[str, object]:
    expected = train(net())
    if not run_out():
        return {"ran_out": False}
    plain = makes_kernels(63)
    with hw.memory_budget("1MiB", device="cpu"):
        found = train(net())
    model = net()
    largest = hw.max_batch(lambda size: train(model, size), "64MiB", most=9, device="cpu")
    return {
        "ran_out": True,
        "plain": plain,
        "equal": len(found) == len(expected) and all(map(torch.equal, found, expected)),
        "largest": largest,
    }


if __name__ == "__main__":
    print(json.dumps(main()))
