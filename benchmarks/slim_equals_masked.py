"""Does a model whose channels were removed give what it gives with these channels silenced?

Networks of torchvision after a few steps of training. Masked means that scale and shift of every batch norm
on a channel are 0. In training, statistics of few values enlarge rounding errors: there both are compared
in double precision, and so are their weights after one more step of the optimiser, whose momenta were cut
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
from headwater.train.tickets.cuts import Cuts, find_cuts
from headwater.train.tickets.exactness import find_exact_groups, mask
from headwater.train.tickets.scales import Scales
from headwater.train.tickets.statistics import recalibrate
from headwater.train.tickets.surgery import operate, tensors_of
from measuring import Bar, Cell, Options, Report, Table, main

RATIOS = (0.3, 0.5, 0.7)
CLOSE, EXACT = 1e-5, 1e-9
_EDGE = 64
_BATCH = 8
_STEPS = 3


@dataclass(frozen=True)
class Found:
    """Largest differences: of logits, the largest of which is `logit`, and of weights after the next step."""

    name: str
    ratio: float
    removed: float
    fewer_macs: float
    logit: float
    evaluated: float
    trained: float
    stepped: float
    seconds: float

    @property
    def row(self) -> tuple[Cell, ...]:
        sizes = (f"{self.ratio:g}", f"{self.removed:.0%}", f"{self.fewer_macs:.2f}x")
        apart = (f"{value:.1e}" for value in (self.evaluated, self.trained, self.stepped))
        return (self.name, *sizes, f"{self.logit:.2f}", *apart, f"{self.seconds:.1f}")


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, *, seed: int) -> None:
    torch.manual_seed(seed)
    model.train()
    for _ in range(steps):
        images, targets = torch.randn(_BATCH, 3, _EDGE, _EDGE), torch.randint(0, CLASSES, (_BATCH,))
        optimizer.zero_grad()
        cross_entropy(model(images.to(next(model.parameters()).dtype)), targets).backward()
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
    recalibrate(model, [_noise(4)])
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
    evaluated, logit = _apart(model.eval(), masked.eval())
    fewer = before.macs / measure_cost(model, example).macs
    (model, moving), (masked, whole) = _doubled(model, moving), _doubled(masked, whole)
    trained, _ = _apart(model.train(), masked.train())
    learn(model, moving, 1, seed=2)
    learn(masked, whole, 1, seed=2)
    stepped = _weights_apart(model, masked, cuts)
    return Found(name, ratio, plan.removed, fewer, logit, evaluated, trained, stepped, seconds)


def _noise(seed: int) -> torch.Tensor:
    return torch.randn(4 * _BATCH, 3, _EDGE, _EDGE, generator=torch.Generator().manual_seed(seed))


def _doubled(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
    double = copy.deepcopy(model).double()
    found = optimiser(double)
    found.load_state_dict(optimizer.state_dict())
    return double, found


def _apart(model: nn.Module, masked: nn.Module) -> tuple[float, float]:
    """The largest difference of logits, and the largest logit."""
    images = _noise(3).to(next(model.parameters()).dtype)
    with torch.no_grad():
        found, wanted = model(images), masked(images)
    return float((found - wanted).abs().max()), float(wanted.abs().max())


def _weights_apart(model: nn.Module, masked: nn.Module, cuts: Cuts) -> float:
    own = tensors_of(model)
    with torch.no_grad():
        return max(
            float((own[key] - (cuts.tensors[key].apply(value) if key in cuts.tensors else value)).abs().max())
            for key, value in tensors_of(masked).items()
        )


def run(folder: Path, options: Options) -> Report:
    ratios = RATIOS[1:2] if options.quick else RATIOS
    found = [compare(name, ratio) for name in NETWORKS for ratio in ratios]
    columns = (
        *("network", "ratio", "removed", "fewer MACs", "largest logit"),
        *("eval, fp32", "training, fp64", "next step, fp64", "surgery s"),
    )
    worst, slack = max(one.evaluated for one in found), max(max(one.trained, one.stepped) for one in found)
    bars = (
        Bar("logits, slim - masked, at most", f"{CLOSE:g}", f"{worst:.1e}", worst <= CLOSE),
        Bar("in double precision, training too, at most", f"{EXACT:g}", f"{slack:.1e}", slack <= EXACT),
    )
    return Report(
        "largest difference of a slim model to the masked one",
        (Table(columns, tuple(one.row for one in found)),),
        bars,
        ("next step: largest difference of a weight or statistic after one more step of SGD with momentum",),
    )


if __name__ == "__main__":
    main(__doc__, run)
