"""A process that may have little memory trains within a budget; prints JSON. Started by test_relief.py.

    under_a_limit.py NET BUDGET LIMIT

Both in bytes; the limit is beyond what the process has by then. One limit in a process, because oneDNN makes
no kernels any more in a thread that once had no memory for one.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload

import headwater as hw
from headwater.train.memory.parts import Call, Gradients, Parts
from headwater.train.memory.shortage import is_out_of_memory
from headwater.train.memory.tracker import Tracker

ROWS = 64


class Layer(nn.Module):
    """An LSTM, which makes one large tensor for its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(64, 64, batch_first=True)

    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = self.layer(values)[0]
        return found


def recurrent() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(*(Layer() for _ in range(4))), torch.randn(ROWS, 64, 64)


def dropping() -> tuple[nn.Module, Tensor]:
    blocks = [
        nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512), nn.GELU(), nn.Dropout(0.3)) for _ in range(6)
    ]
    return nn.Sequential(*blocks), torch.randn(4096, 512)


def convolving() -> tuple[nn.Module, Tensor]:
    layers = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(inplace=True)) for _ in range(6)]
    return nn.Sequential(nn.Conv2d(3, 16, 1), *layers, nn.AvgPool2d(8)), torch.randn(ROWS, 3, 32, 32)


NETS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "recurrent": recurrent,
    "dropping": dropping,
    "convolving": convolving,
}


def run(net: nn.Module, values: Tensor) -> list[Tensor]:
    """Three steps; gradients of the last, and what batch norms counted."""
    for step in range(3):
        torch.manual_seed(step)
        net.zero_grad(set_to_none=True)
        net(values).square().mean().backward()
    return [one.grad.clone() for one in net.parameters() if one.grad is not None] + [
        buffer.clone() for buffer in net.buffers()
    ]


def data_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))


def main(name: str, budget: int, limit: int) -> dict[str, object]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, values = NETS[name]()
    start = {key: value.clone() for key, value in net.state_dict().items()}
    expected = run(net, values)
    relieved: list[bool] = []
    relieve = Tracker.relieve

    def count(self: Tracker) -> bool:
        relieved.append(relieve(self))
        return relieved[-1]

    Tracker.relieve = count  # type: ignore[method-assign]
    split: list[int] = []
    run_parts = Parts.run

    def count_parts(self: Parts, call: Call, func: OpOverload, args: tuple[Any, ...]) -> Gradients:
        split.append(1)
        return run_parts(self, call, func, args)

    Parts.run = count_parts  # type: ignore[method-assign]
    with hw.memory_budget(budget, device="cpu"):  # warm: what torch imports with the first mode
        run(net, values)
    del relieved[:], split[:]
    net.load_state_dict(start)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + limit, resource.RLIM_INFINITY))
    found = run_within(budget, net, values)
    if found is None:
        return {"fits": False}
    equal = len(found) == len(expected) and all(map(torch.equal, found, expected))
    return {"fits": True, "equal": equal, "relieved": sum(relieved), "split": len(split)}


def run_within(budget: int, net: nn.Module, values: Tensor) -> list[Tensor] | None:
    """None if there is too little memory even when everything has left."""
    try:
        with hw.memory_budget(budget, device="cpu") as held:
            found = run(net, values)
            assert held.report().peak <= budget
            return found
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    net.zero_grad(set_to_none=True)
    gc.collect()
    return None


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
