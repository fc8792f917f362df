"""Whether training within a memory budget gives what plain training gives: losses, gradients, statistics.

Four kinds of networks and one with dropout, in-place ReLU and batch norm, by each way and by both, at several
budgets; weights are moved after each iteration, so that what is off in one would show in all later ones.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import headwater as hw
from headwater.errors import MemoryTooSmall
from measuring import Bar, Cell, Flag, Options, Report, Table, main
from memory_nets import CLASSES, NETS, make

SHARES = (0.7, 0.5, 0.3)
WAYS = {"both": (True, True), "swap": (True, False), "recompute": (False, True)}
STEPS = 6
FLAGS = {"batch": Flag(16, "samples of a batch")}
DROPPING = "dropout, in-place ReLU, batch norm"


def dropping() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before in (3, *[16] * 7):
        layers += [nn.Conv2d(before, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
        layers.append(nn.Dropout(0.2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES))


def train(name: str, size: int, around: AbstractContextManager[object]) -> list[Tensor]:
    """Losses and gradients of all iterations, and what batch norms counted in the end."""
    net = dropping() if name == DROPPING else make(name)
    shape = (3, 32, 32) if name == DROPPING else NETS[name][1]
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    found: list[Tensor] = []
    with around:
        for place in range(STEPS):
            torch.manual_seed(place)
            optimiser.zero_grad()
            loss = cross_entropy(net(torch.randn(size, *shape)), torch.arange(size) % CLASSES)
            loss.backward()
            found += [loss.detach(), *(one.grad.clone() for one in net.parameters() if one.grad is not None)]
            optimiser.step()
    return [*found, *net.buffers()]


def peak(name: str, size: int) -> int:
    with hw.memory_budget("1TiB", device="cpu") as budget:
        train(name, size, nullcontext())
        return budget.report().peak_before


def compare(name: str, size: int, share: float, way: str, plain: list[Tensor], most: int) -> tuple[Cell, ...]:
    """A row; a budget that no step fits into is raised to what is asked for."""
    budget, (swap, recompute) = int(most * share), WAYS[way]
    while True:
        context = hw.memory_budget(budget, device="cpu", swap=swap, recompute=recompute)
        try:
            found = train(name, size, context)
            break
        except MemoryTooSmall as error:
            budget = max(error.needed, budget * 33 // 32)
    different = sum(int((one != other).sum()) for one, other in zip(found, plain, strict=True))
    report, values = context.report(), sum(one.numel() for one in plain)
    moved = f"{report.swapped / 2**20:.1f}", f"{report.recomputed / 2**20:.1f}"
    return name, f"{budget / most:.2f}", way, values, different, *moved


def run(folder: Path, options: Options) -> Report:
    size = 4 if options.quick else int(options.numbers["batch"])
    names = [*NETS, DROPPING][: 1 if options.quick else None]
    rows: list[tuple[Cell, ...]] = []
    for name in names:
        plain, most = train(name, size, nullcontext()), peak(name, size)
        for share in SHARES[: 1 if options.quick else None]:
            rows += [compare(name, size, share, way, plain, most) for way in WAYS]
    different = sum(int(str(row[4])) for row in rows)
    moved = sum(1 for row in rows if float(str(row[5])) + float(str(row[6])) > 0)
    columns = ("network", "budget / peak", "way", "values", "different", "MB out", "MB made again")
    return Report(
        "Does training within a memory budget give what plain training gives?",
        (Table(columns, tuple(rows)),),
        (
            Bar("values that differ from plain training's", "0", str(different), different == 0),
            Bar("runs in which something left memory", "all", f"{moved} of {len(rows)}", moved == len(rows)),
        ),
        (f"{STEPS} iterations each; MB are of the last one.",),
    )


if __name__ == "__main__":
    main(__doc__, run, flags=FLAGS)
