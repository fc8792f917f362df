"""Whether a batch fits under a hard limit: one net, one way, a process of its own; prints JSON.

    batch_size.py NET WAY SIZE LIMIT [BUDGET]

The limit, bytes of data beyond what the process has after warming up, is the system's own (RLIMIT_DATA).
With a limit of 0, the least budget that steps of this size allow.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import headwater as hw
from headwater.errors import MemoryTooSmall
from headwater.train.memory.shortage import is_out_of_memory
from memory_nets import make, step
from memory_ways import RIVALS

STEPS = 3
TRIES = 4


def main(name: str, way: str, size: int, limit: int, budget: int = 2**20) -> dict[str, object]:
    net = make(name)
    if not limit:
        return {"budget": _least_budget(net, name, size)}
    _warm_up(net, name, way)
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + limit,) * 2)
    if way != "ours":
        with RIVALS[way](net) as wrapped:
            return {"fits": _runs(lambda: step(wrapped, name, size))}
    for _ in range(TRIES):
        try:
            with hw.memory_budget(budget, device="cpu"):
                return {"fits": _runs(lambda: step(net, name, size)), "budget": budget}
        except MemoryTooSmall as error:  # by little: tensors are not quite in proportion to the batch
            budget = error.needed
    return {"fits": False}


def _least_budget(net: torch.nn.Sequential, name: str, size: int) -> int:
    """Under a limit on the process, whatever is held beyond that is room that operations do not have."""
    budget = 2**20
    while True:
        try:
            with hw.memory_budget(budget, device="cpu"):
                for _ in range(STEPS):
                    step(net, name, size)
        except MemoryTooSmall as error:
            budget = max(error.needed, budget * 65 // 64)
        else:
            return budget


def _warm_up(net: torch.nn.Sequential, name: str, way: str) -> None:
    if way == "ours":
        with hw.memory_budget("2MiB", device="cpu"):
            for _ in range(2):
                step(net, name, 2)
    else:
        with RIVALS[way](net) as wrapped:
            for _ in range(2):
                step(wrapped, name, 2)


def _runs(call: Callable[[], None]) -> bool:
    try:
        for _ in range(STEPS):
            call()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        gc.collect()
    return True


def _data_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the system does not tell how much data this process has")


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))))
