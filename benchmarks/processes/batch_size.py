"""Whether a batch fits under a hard limit: one net, one way, a process of its own; prints JSON.

    batch_size.py NET WAY SIZE LIMIT

The limit, bytes of data beyond what the process has after warming up, is the system's own (RLIMIT_DATA).
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
from headwater.train.memory.batches import is_out_of_memory
from memory_nets import make, step
from memory_ways import RIVALS

SHARES = (0.6, 0.45, 0.35, 0.25, 0.18, 0.12)
"""Of the limit, as budgets: the rest is for what an operation needs while it runs."""
STEPS = 3


def main(name: str, way: str, size: int, limit: int) -> dict[str, object]:
    net = make(name)
    _warm_up(net, name, way)
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + limit,) * 2)
    if way != "ours":
        with RIVALS[way](net) as wrapped:
            return {"fits": _runs(lambda: step(wrapped, name, size))}
    for share in SHARES:
        budget = hw.memory_budget(int(limit * share))
        if _runs_within(budget, net, name, size):
            report = budget.report()
            return {"fits": True, "share": share, "held": report.peak, "budget": report.budget}
    return {"fits": False}


def _warm_up(net: torch.nn.Sequential, name: str, way: str) -> None:
    if way == "ours":
        with hw.memory_budget("2MiB"):
            for _ in range(2):
                step(net, name, 2)
    else:
        with RIVALS[way](net) as wrapped:
            for _ in range(2):
                step(wrapped, name, 2)


def _runs_within(budget: hw.MemoryBudget, net: torch.nn.Sequential, name: str, size: int) -> bool:
    try:
        with budget:
            return _runs(lambda: step(net, name, size))
    except MemoryTooSmall:
        return False


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
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
