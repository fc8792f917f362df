"""Two ranks that train one model: both draw the same ticket, and train on with it in a new wrapper."""

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
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
import headwater as hw
from headwater.plan.prune import SettledMask
from prunable import images, labels, make

rank, port, out = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=2)
model = make("ResNet, basic")
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
rule = SettledMask(limit=0.9, window=3, every=2)
bird = hw.EarlyBird(model, ratio=0.5, steps=40, rule=rule, round_to=1, example=images(1))
for step in range(12):
    seed = 2 * step + int(rank)  # other images on each rank
    optimizer.zero_grad()
    cross_entropy(wrapped(images(seed=seed)), labels(seed=seed)).backward()
    bird.after_backward()
    optimizer.step()
    if bird.observe(lr=0.05):
        bird.slim(optimizer, [images(16, seed=99)])
        wrapped = DistributedDataParallel(model)
weights = torch.cat([value.detach().flatten() for value in model.parameters()])
json.dump({"plan": bird.plan.to_dict(), "weights": weights.tolist()}, open(out, "w"))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_draw_the_same_ticket_and_stay_the_same(tmp_path: Path) -> None:
    (port,), outs = free_ports(1), [tmp_path / "0.json", tmp_path / "1.json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(port), str(out)], env=environment)
        for rank, out in enumerate(outs)
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    one, other = (json.loads(out.read_text()) for out in outs)
    assert one["plan"]["step"] == 6
    assert one == other
