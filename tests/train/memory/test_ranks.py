"""Two ranks that train one model within a budget each: the weights are those of two plain ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seaweed import free_ports

RANK = """
import json, sys
from contextlib import nullcontext
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import headwater as hw
from budgets import loss_of, make

rank, port, out, budget = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=2)
model, _ = make("residual")
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
around = hw.memory_budget(int(budget), device="cpu") if int(budget) else nullcontext()
with around:
    for step in range(5):
        torch.manual_seed(2 * step + int(rank))  # other images on each rank
        optimizer.zero_grad()
        loss_of(wrapped, torch.randn(4, 3, 16, 16)).backward()
        optimizer.step()
moved = around.report().swapped + around.report().recomputed if int(budget) else 0
weights = torch.cat([value.detach().flatten() for value in model.parameters()])
json.dump({"moved": moved, "weights": weights.tolist()}, open(out, "w"))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_within_a_budget_are_plain_ranks(tmp_path: Path) -> None:
    found = {}
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    for budget in (0, 500_000):
        (port,), outs = free_ports(1), [tmp_path / f"{rank}-{budget}.json" for rank in (0, 1)]
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(rank), str(port), str(out), str(budget)], env=environment
            )
            for rank, out in enumerate(outs)
        ]
        assert [process.wait(120) for process in processes] == [0, 0]
        found[budget] = [json.loads(out.read_text()) for out in outs]
    assert all(one["moved"] for one in found[500_000])
    assert [one["weights"] for one in found[0]] == [one["weights"] for one in found[500_000]]
