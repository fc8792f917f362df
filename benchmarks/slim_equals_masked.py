"""Does a model whose channels were removed give what it gives with these channels silenced?

Networks of torchvision after a few steps of training. Masked means that scale and shift of every batch norm
on a channel are 0. Also compared: weights after the next step of the optimiser, whose momenta were cut
along.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from architectures import CLASSES, NETWORKS
from headwater.plan.prune import make_plan
from headwater.train.tickets.costs import measure_cost
from headwater.train.tickets.cuts import find_cuts
from headwater.train.tickets.exactness import find_exact_groups, mask
from headwater.train.tickets.scales import Scales
from headwater.train.tickets.surgery import operate, tensors_of
from measuring import Bar, Cell, Options, Report, Table, main

RATIOS = (0.3, 0.5, 0.7)
CLOSE = 1e-5
_EDGE = 64
_BATCH = 8
_STEPS = 3


@dataclass(frozen=True)
class Found:
    """Largest differences, of logits in eval and in training mode, and of weights after the next step."""

    name: str
    ratio: float
    removed: float
    fewer_macs: float
    evaluated: float
    trained: float
    stepped: float
    seconds: float

    @property
    def row(self) -> tuple[Cell, ...]:
        sizes = (f"{self.ratio:g}", f"{self.removed:.0%}", f"{self.fewer_macs:.2f}x")
        apart = (f"{value:.1e}" for value in (self.evaluated, self.trained, self.stepped))
        return (self.name, *sizes, *apart, f"{self.seconds:.1f}")


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, *, seed: int) -> None:
    torch.manual_seed(seed)
    model.train()
    for _ in range(steps):
        images, targets = torch.randn(_BATCH, 3, _EDGE, _EDGE), torch.randint(0, CLASSES, (_BATCH,))
        optimizer.zero_grad()
        cross_entropy(model(images), targets).backward()
        optimizer.step()


def optimiser(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)


def compare(name: str, ratio: float) -> Found:
    torch.manual_seed(0)
    model, example = NETWORKS[name](), torch.zeros(1, 3, _EDGE, _EDGE)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.1, 1.0)
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0  # the two models would drop different things
    moving = optimiser(model)
    learn(model, moving, _STEPS, seed=1)
    groups = find_exact_groups(model, example)
    scales = Scales(model, groups)
    plan, before = make_plan(scales.channels, scales.read(), ratio=ratio), measure_cost(model, example)
    masked = copy.deepcopy(model)
    whole = optimiser(masked)
    whole.load_state_dict(copy.deepcopy(moving.state_dict()))
    mask(masked, groups, plan.drops())
    begin = time.perf_counter()
    cuts = find_cuts(model, example, plan.drops())
    operate(model, cuts, moving)
    seconds = time.perf_counter() - begin
    evaluated, trained = (_apart(model, masked, training=training) for training in (False, True))
    learn(model, moving, 1, seed=2)
    learn(masked, whole, 1, seed=2)
    own = tensors_of(model)
    stepped = max(
        float((own[key] - (cuts.tensors[key].apply(value) if key in cuts.tensors else value)).abs().max())
        for key, value in tensors_of(masked).items()
    )
    fewer = before.macs / measure_cost(model, example).macs
    return Found(name, ratio, plan.removed, fewer, evaluated, trained, stepped, seconds)


def _apart(model: nn.Module, masked: nn.Module, *, training: bool) -> float:
    torch.manual_seed(3)
    images = torch.randn(_BATCH, 3, _EDGE, _EDGE)
    with torch.no_grad():
        found, wanted = model.train(training)(images), masked.train(training)(images)
    return float((found - wanted).abs().max())


def run(folder: Path, options: Options) -> Report:
    ratios = RATIOS[1:2] if options.quick else RATIOS
    found = [compare(name, ratio) for name in NETWORKS for ratio in ratios]
    columns = ("network", "ratio", "removed", "fewer MACs", "eval", "training", "next step", "surgery s")
    worst = max(max(one.evaluated, one.trained) for one in found)
    bar = Bar(
        "logits, slim - masked, at most",
        f"{CLOSE:g}",
        f"{worst:.1e} on {len(NETWORKS)} networks",
        worst <= CLOSE,
    )
    return Report(
        "largest difference of a slim model to the masked one",
        (Table(columns, tuple(one.row for one in found)),),
        (bar,),
        ("next step: largest difference of a weight or statistic after one more step of SGD with momentum",),
    )


if __name__ == "__main__":
    main(__doc__, run)
