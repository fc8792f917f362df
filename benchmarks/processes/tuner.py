"""Fine-tunings in a process of their own, prepared once and run as often as asked for; and relabels.

    tuner.py REGISTRY

Answers lines of JSON on standard input, each with one line of JSON. `do` says what is to be done:

    prepare     a fine-tuning called `name`, see `Settings`: what its plan expects
    fit         the one called `name`: seconds in all, of features and of training
    relabel     at a `store`, with a `model` that it has: labels that were written, and seconds
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

import headwater as hw
from headwater.models.registry import Registry
from headwater.plan.finetune import FinetunePlan
from headwater.tune.labels import Labelled
from headwater.tune.relabel import Wish, relabel_at

_POOLED = 4
_RATE = 0.01
_STEP = 0.1


@dataclass(frozen=True)
class Settings:
    """`data` are what `hw.open` takes, `samples` so many of them, evenly spread; 0 are all.

    Labels count modulo `classes`. The head is linear; with a `depth` it is one that takes long to train.
    """

    data: list[str]
    model: str
    samples: int = 0
    classes: int = 10
    depth: int = 0
    recipe: dict[str, Any] = field(default_factory=dict)

    def labelled(self) -> Labelled:
        data = hw.open(self.data[0] if len(self.data) == 1 else self.data, progress=False)
        if self.samples:
            data = data.select(data.ids[np.linspace(0, len(data) - 1, self.samples).astype(np.int64)])
        names = tuple(map(str, range(self.classes)))
        return Labelled(data, np.asarray(data.labels, np.int64) % self.classes, names)


class Deep(nn.Module):
    """One layer again and again, on features of which four are made one.

    Many products for few weights: the state of training is written to disk after every epoch, and with
    thousands of photos, and not millions, that would take longer than the epoch.
    """

    def __init__(self, features: int, classes: int, depth: int) -> None:
        super().__init__()
        width = features // _POOLED
        self.again, self.last, self.depth = nn.Linear(width, width), nn.Linear(width, classes), depth

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        state = features.unflatten(1, (-1, _POOLED)).mean(2)
        for _ in range(self.depth):
            state = state + _STEP * torch.relu(self.again(state))
        logits: torch.Tensor = self.last(state)
        return logits


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=_RATE)


class Bench:
    """The fine-tunings by name."""

    def __init__(self, registry: str) -> None:
        self._registry = Registry(registry)
        self._tuners: dict[str, hw.Tuner] = {}

    def prepare(self, name: str, **settings: Any) -> dict[str, Any]:
        wanted = Settings(**settings)
        labelled = wanted.labelled()
        torch.manual_seed(0)
        width = self._registry.version(wanted.model).features
        self._tuners[name] = tuner = hw.Tuner(
            labelled.dataset,
            wanted.model,
            registry=self._registry,
            recipe=hw.Recipe(**wanted.recipe),
            labels=labelled,
            head=Deep(width, wanted.classes, wanted.depth) if wanted.depth else None,
            optimiser=sgd if wanted.depth else None,
        )
        facts = {"photos": len(labelled), "file": float(labelled.dataset.sizes.mean())}
        return facts | describe(tuner.plan())

    def fit(self, name: str) -> dict[str, Any]:
        done = self._tuners[name].fit(name, unmeasured=True)  # of int8 layers only the cost matters here
        if done.failed or done.resumed:
            raise RuntimeError(f"{done.failed} of the photos of {name!r} failed, resumed: {done.resumed}")
        took = done.measured
        return {"seconds": took.seconds, "extract": took.extract_seconds, "train": took.train_seconds}

    def relabel(self, store: str, model: str) -> dict[str, Any]:
        begin = time.perf_counter()
        (found,) = relabel_at([store], Wish(model=model))
        if found.error is not None or found.job is None:
            raise RuntimeError(f"the store did not label its photos: {found}") from found.error
        labels = sum(found.job.counts[what] for what in ("labelled", "unchanged", "changed", "skipped"))
        return {"labels": labels, "seconds": time.perf_counter() - begin}


def describe(plan: FinetunePlan) -> dict[str, Any]:
    return {
        "cut": plan.cut.name,
        "runs": plan.runs,
        "seconds": plan.seconds,
        "train": plan.stages.train,
        "options": {option.cut.name: option.seconds for option in plan.options},
        "bytes": {option.cut.name: option.cut.bytes for option in plan.options},
    }


def answer(bench: Bench) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    commands = {"prepare": bench.prepare, "fit": bench.fit, "relabel": bench.relabel}
    print(json.dumps({"ready": 1}), file=answers, flush=True)
    for line in sys.stdin:
        wish = json.loads(line)
        print(json.dumps(commands[wish.pop("do")](**wish)), file=answers, flush=True)


if __name__ == "__main__":
    answer(Bench(sys.argv[1]))
