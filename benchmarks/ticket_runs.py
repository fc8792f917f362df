"""Runs of the experiment with early tickets: dense ones that are searched, and slim ones that go on.

Batches are a function of seed and step, so a slim run that begins at step k continues the dense one
exactly. A search keeps a snapshot at every step at which one of its birds draws a ticket; a slim run starts
there, and the seconds of the search up to there count as its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

import headwater as hw
from headwater.plan.prune import PrunePlan
from headwater.train.tickets.costs import measure_cost
from headwater.train.tickets.cuts import find_cuts
from headwater.train.tickets.statistics import recalibrate
from headwater.train.tickets.surgery import operate
from imagesets import Ints

EDGE = 32
CLASSES = 10
PENALTY = 1e-4
CALIBRATING = 20
"""Batches that batch norms get their statistics from."""
EXAMPLE = torch.zeros(1, 3, EDGE, EDGE)
_SHIFT = 4
_FIRST_SCALE = 0.5  # of batch norms, as in the paper's code
_AT_ONCE = 500
_FEW = 2_000  # test images around the surgery
_ALONG = np.arange(EDGE)
_TRAINING = 3  # forward, and both halves of backward

Pixels = Mapping[str, NDArray[Any]]


def make_network(width: int) -> nn.Module:
    """A small VGG for 32 pixels: patches of two, five convolutions in three stages."""
    network = nn.Sequential(
        nn.PixelUnshuffle(2),
        _convolution(12, width),
        nn.MaxPool2d(2),
        _convolution(width, 2 * width),
        _convolution(2 * width, 2 * width),
        _convolution(2 * width, 4 * width),
        nn.MaxPool2d(2),
        _convolution(4 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, CLASSES),
    )
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.constant_(layer.weight, _FIRST_SCALE)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _convolution(inputs: int, outputs: int) -> nn.Module:
    layers = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
    return nn.Sequential(*layers, nn.ReLU(inplace=True))


@dataclass(frozen=True)
class Recipe:
    """How all runs are trained."""

    steps: int
    batch: int = 128
    width: int = 32
    rate: float = 0.1
    decay: float = 1e-4


def step_wise(done: float) -> float:
    """The paper's schedule: the rate is cut to a tenth after half of the run, and after three quarters."""
    return 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01


def small(done: float) -> float:
    """The paper's other one: a tenth from the beginning, a hundredth after five eighths."""
    return 0.1 if done < 0.625 else 0.01


def cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


SCHEDULES: dict[str, Callable[[float], float]] = {"large": step_wise, "small": small, "cosine": cosine}


@dataclass(frozen=True)
class Search:
    """A dense run up to a share of its steps, at a schedule, perhaps in few bits."""

    schedule: str = "large"
    until: float = 1.0
    bits: int | None = None


@dataclass(frozen=True)
class SearchRun:
    """A search: percents right after its last step, and of each bird the step at which it drew, and why.

    The step is 0 if it never did. `at` are CPU seconds by these steps and by the end; `own` are those of
    one bird.
    """

    accuracy: float
    drawn: dict[str, list[Any]]
    at: dict[str, float]
    own: float
    macs: int

    @property
    def cpu(self) -> float:
        return max(self.at.values())


@dataclass(frozen=True)
class SlimRun:
    """A slim run: `seconds` and `work`, multiply-adds of training, with the search before it; `cpu` without.

    `before`, `uncalibrated` and `calibrated` are percents around the surgery: of the dense model, of the
    slim one with the statistics that were cut, and with new ones.
    """

    accuracy: float
    before: float
    uncalibrated: float
    calibrated: float
    step: int
    removed: float
    macs: int
    seconds: float
    work: float
    cpu: float


class Laboratory:
    """CIFAR-10 in memory, a recipe, and a folder for snapshots."""

    def __init__(self, pixels: Pixels, recipe: Recipe, folder: Path) -> None:
        self.recipe, self._folder = recipe, folder
        self._labels, self._test_labels = torch.from_numpy(pixels["train-labels"]), pixels["test-labels"]
        around = ((0, 0), (_SHIFT, _SHIFT), (_SHIFT, _SHIFT), (0, 0))
        self._train, self._test = np.pad(pixels["train"], around), pixels["test"]
        self._known: tuple[tuple[int, int], Ints] = ((-1, -1), np.empty(0, np.int64))

    def search(
        self, search: Search, seed: int, birds: Mapping[str, Callable[[nn.Module], hw.EarlyBird]]
    ) -> SearchRun:
        """Train densely while all birds look on; the first one's penalty and bits count."""
        model, optimizer = self._begin(seed)
        watching = {name: make(model) for name, make in birds.items()}
        first, drawn = next(iter(watching.values())), {name: [0, ""] for name in watching}
        macs, own, at, seconds = measure_cost(model, EXAMPLE).macs, 0.0, {}, 0.0
        for step in self._steps(0, search.until):
            begin = time.process_time()
            rate = self._set_rate(optimizer, search.schedule, step)
            with first.searching():
                self._backward(model, optimizer, seed, step)
            middle = time.process_time()
            first.after_backward()
            own += time.process_time() - middle
            optimizer.step()
            seconds += time.process_time() - begin
            for name, bird in watching.items():
                begin = time.process_time()
                ready = bird.observe(lr=rate) and not drawn[name][0]
                own += (time.process_time() - begin) / len(watching)
                if ready and bird.plan is not None:
                    drawn[name] = [step + 1, bird.plan.reason]
                    self._keep(search, seed, name, model, optimizer, bird)
            if any(step + 1 in look for look in drawn.values()) or step + 1 == self._last(search.until):
                at[str(step + 1)] = seconds
        self._keep_looks(search, seed, watching)
        return SearchRun(self.judge(model), drawn, at, own, macs)

    def _last(self, until: float) -> int:
        """The step of the look at a share of the run, or after it."""
        return min(self.recipe.steps, math.ceil(self.recipe.steps * (until + 0.01)))

    def _steps(self, begin: int, until: float = 1.0) -> Iterator[int]:
        return iter(range(begin, self._last(until)))

    def _begin(self, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = make_network(self.recipe.width)
        return model, self._optimiser(model)

    def _optimiser(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            model.parameters(), self.recipe.rate, momentum=0.9, weight_decay=self.recipe.decay
        )

    def _set_rate(self, optimizer: torch.optim.Optimizer, schedule: str, step: int) -> float:
        rate = self.recipe.rate * SCHEDULES[schedule](step / self.recipe.steps)
        optimizer.param_groups[0]["lr"] = rate
        return rate

    def _backward(self, model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, step: int) -> None:
        model.train()
        images, targets = self.batch(seed, step)
        optimizer.zero_grad()
        cross_entropy(model(images), targets).backward()

    def batch(self, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The images of a step, each moved and perhaps mirrored; a function of seed and step."""
        size = self.recipe.batch
        epoch, place = divmod(step, len(self._labels) // size)
        places = self._order(seed, epoch)[place * size : (place + 1) * size]
        rng = np.random.default_rng((seed, epoch, place))
        down, right = rng.integers(0, 2 * _SHIFT + 1, (2, size, 1))
        along = np.where(rng.random((size, 1)) < 0.5, _ALONG, _ALONG[::-1])
        taken = self._train[places[:, None, None], (down + _ALONG)[:, :, None], (right + along)[:, None]]
        return _scaled(taken), self._labels[torch.from_numpy(places)]

    def _order(self, seed: int, epoch: int) -> Ints:
        if self._known[0] != (seed, epoch):
            rng = np.random.default_rng((seed, epoch))
            self._known = (seed, epoch), rng.permutation(len(self._labels))
        return self._known[1]

    def judge(self, model: nn.Module, images: int | None = None) -> float:
        """Percents of the test images that it gets right, or of the first so many."""
        test, labels = self._test[:images], self._test_labels[:images]
        model.eval()
        with torch.inference_mode():
            parts = [
                model(_scaled(test[begin : begin + _AT_ONCE])).argmax(1).numpy()
                for begin in range(0, len(test), _AT_ONCE)
            ]
        return 100 * float((np.concatenate(parts) == labels).mean())

    def _keep(
        self,
        search: Search,
        seed: int,
        name: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        bird: hw.EarlyBird,
    ) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "bird": bird.state_dict()}
        torch.save(state, self._path(search, seed, name))

    def _path(self, search: Search, seed: int, name: str) -> Path:
        bits = f"-{search.bits}bit" if search.bits else ""
        run = f"{search.schedule}{bits}-{self.recipe.steps}x{self.recipe.batch}-{seed}"
        return self._folder / f"{run}-{name.replace(' ', '-')}.pt"

    def _keep_looks(self, search: Search, seed: int, birds: Mapping[str, hw.EarlyBird]) -> None:
        for name, bird in birds.items():
            if bird.plan is None:
                torch.save({"bird": bird.state_dict()}, self._path(search, seed, name))

    def looks_of(
        self, search: Search, seed: int, name: str, make: Callable[[nn.Module], hw.EarlyBird]
    ) -> hw.EarlyBird:
        """The bird as it was when it drew, or at the end."""
        bird = make(make_network(self.recipe.width))
        bird.load_state_dict(torch.load(self._path(search, seed, name))["bird"])
        return bird

    def slim(
        self,
        search: Search,
        run: SearchRun,
        seed: int,
        *,
        name: str,
        make: Callable[[nn.Module], hw.EarlyBird],
        way: str,
    ) -> SlimRun:
        """Go on from where a bird drew: with its ticket, random channels, or its shape from scratch."""
        model, optimizer = self._begin(seed + (way == "scratch") * 1_000)
        bird, saved = make(model), torch.load(self._path(search, seed, name))
        bird.load_state_dict(saved["bird"])
        plan = bird.plan
        assert plan is not None
        first = 0 if way == "scratch" else plan.step
        if first:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        judged = [self.judge(model, _FEW)]
        spent = self._cut(model, optimizer, shuffle(plan, seed) if way == "random" else plan)
        judged.append(self.judge(model, _FEW))
        spent += self._calibrate(model, seed, first)
        judged.append(self.judge(model, _FEW))
        onward = "large" if search.schedule == "small" else search.schedule
        spent += self._train_on(model, optimizer, bird, seed=seed, begin=first, schedule=onward)
        macs = measure_cost(model, EXAMPLE).macs
        work = _TRAINING * self.recipe.batch * (first * run.macs + (self.recipe.steps - first) * macs)
        seconds = spent + (run.at[str(first)] if first else 0.0)
        return SlimRun(
            self.judge(model), *judged, first, plan.removed, macs, seconds, work=float(work), cpu=spent
        )

    def _cut(self, model: nn.Module, optimizer: torch.optim.Optimizer, plan: PrunePlan) -> float:
        begin = time.process_time()
        operate(model, find_cuts(model, EXAMPLE, plan.drops()), optimizer)
        return time.process_time() - begin

    def _calibrate(self, model: nn.Module, seed: int, first: int) -> float:
        begin = time.process_time()
        recalibrate(
            model, (self.batch(seed, first + number) for number in range(CALIBRATING if first else 0))
        )
        return time.process_time() - begin

    def _train_on(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        bird: hw.EarlyBird,
        *,
        seed: int,
        begin: int,
        schedule: str,
    ) -> float:
        """To the end, with the penalty, as published; the CPU seconds."""
        started = time.process_time()
        for step in self._steps(begin):
            self._set_rate(optimizer, schedule, step)
            self._backward(model, optimizer, seed, step)
            bird.after_backward()
            optimizer.step()
        return time.process_time() - started


def shuffle(plan: PrunePlan, seed: int) -> PrunePlan:
    """As many channels of each layer, but any."""
    rng, keep = np.random.default_rng((seed, 7)), plan.keep.copy()
    for _, part in plan.channels.parts():
        keep[part] = rng.permutation(keep[part])
    return replace(plan, keep=keep, reason="at random")


def _scaled(images: NDArray[Any]) -> torch.Tensor:
    """As (n, channels, edge, edge), whose memory stays as it is: channels_last."""
    return (
        torch.from_numpy(np.ascontiguousarray(images))
        .permute(0, 3, 1, 2)
        .to(torch.float32)
        .sub_(120)
        .div_(64)
    )
