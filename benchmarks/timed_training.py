"""A small network that is trained through a loader with a selector, and where the wall seconds of it go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import nn
from torch.nn.functional import cross_entropy

import headwater as hw
from convnets import make_network
from headwater import transforms as T
from headwater.data.pipeline import Pipeline
from headwater.measure.signals import Signals
from headwater.select.selecting import Selector

WAITING, FORWARD, BACKWARD, AVERAGING, METRICS, SELECTING = PARTS = (
    "waiting for data",
    "forward",
    "backward and step",
    "averaging",
    "metrics",
    "selecting",
)
"""`averaging` is that of gradients between ranks; `metrics` are what `report` does, and noting loads;
`selecting` goes from the last batch to the end of the loop, and ranks tell each other what they saw in it."""
_WIDTH = 16
_RATE = 0.1


@dataclass(frozen=True)
class Settings:
    """`file` is Parquet, of which the first `samples` count; `workers` are threads, None: one a core.

    With a `test` file, the network is judged by that after the last epoch.
    """

    file: str
    samples: int
    select: str | Selector | None = None
    batch: int = 128
    epochs: int = 3
    workers: int | None = None
    test: str = ""


@dataclass(frozen=True)
class Epoch:
    """On one rank. `chosen` samples, of which `digest` is that of ids and weights, come in the next one.

    `accuracy` is in percents, of the last epoch where the network was judged.
    """

    images: int
    seconds: float
    parts: Mapping[str, float]
    chosen: int
    digest: str
    accuracy: float | None = None


@dataclass(frozen=True)
class Timed:
    """An epoch: images, its wall seconds, and what they were spent on."""

    images: int
    seconds: float
    parts: Mapping[str, float]


class Loop:
    """Steps of a network through a loader; `average` is called before each.

    `rate` says the share of the learning rate by how much of the run is done.
    """

    def __init__(
        self,
        loader: hw.DataLoader,
        network: nn.Module,
        optimiser: torch.optim.Optimizer,
        *,
        reports: bool,
        average: Callable[[nn.Module], None] | None = None,
        rate: Callable[[float], float] | None = None,
    ) -> None:
        self._loader, self._network, self._optimiser = loader, network, optimiser
        self._reports, self._average, self._rate = reports, average, rate
        self._usual = [group["lr"] for group in optimiser.param_groups]
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._watch(loader.signals)

    def epoch(self) -> Timed:
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._network.train()
        waited, begin = self._loader.stats().waited, time.perf_counter()
        images, asked = 0, begin
        batches = iter(self._loader)
        while (batch := next(batches, None)) is not None:
            self._learn(batch)
            images, asked = images + len(batch), time.perf_counter()
        end = time.perf_counter()
        self._spent[SELECTING] = end - asked
        self._spent[WAITING] = self._loader.stats().waited - waited
        return Timed(images, end - begin, self._spent)

    def _learn(self, batch: hw.Batch) -> None:
        if self._rate is not None:
            for group, usual in zip(self._optimiser.param_groups, self._usual, strict=True):
                group["lr"] = usual * self._rate(self._loader.done)
        with self._spend(FORWARD):
            logits = self._network(batch.inputs)
            losses = cross_entropy(logits, batch.targets, reduction="none")
            loss = (losses * batch.weights).mean()
        with self._spend(BACKWARD):
            self._optimiser.zero_grad()
            torch.autograd.backward(loss)
        if self._average is not None:
            with self._spend(AVERAGING):
                self._average(self._network)
        with self._spend(BACKWARD):
            self._optimiser.step()
        if self._reports:
            with self._spend(METRICS):
                self._loader.report(batch, loss=losses, logits=logits)

    def _watch(self, signals: Signals) -> None:
        """The loader itself notes what samples took to load, between two batches."""
        note_load = signals.note_load

        def timed(*values: Any, **facts: Any) -> None:
            with self._spend(METRICS):
                note_load(*values, **facts)

        signals.note_load = timed  # type: ignore[method-assign]

    @contextmanager
    def _spend(self, part: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._spent[part] += time.perf_counter() - begin


class Training:
    """A network from the same beginning every time; `average` is called before each step."""

    def __init__(self, settings: Settings, average: Callable[[nn.Module], None] | None = None) -> None:
        self._opened = hw.open(settings.file, progress=False)
        self._data = self._opened.select(self._opened.ids[: settings.samples])
        # not told how many epochs there are: the last ones would be whole, for which nothing is selected
        self._loader = hw.DataLoader(
            self._data,
            training_steps(),
            batch_size=settings.batch,
            shuffle=True,
            num_workers=settings.workers,
            select=settings.select,
            progress=False,
        )
        torch.manual_seed(0)
        self.network = make_network(_WIDTH).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimiser = torch.optim.SGD(self.network.parameters(), lr=_RATE, momentum=0.9, nesterov=True)
        reports = settings.select is not None
        self._loop = Loop(self._loader, self.network, optimiser, reports=reports, average=average)

    def epoch(self) -> Epoch:
        timed = self._loop.epoch()
        return Epoch(timed.images, timed.seconds, timed.parts, *self._next())

    def _next(self) -> tuple[int, str]:
        selection = self._loader.selection
        if selection is None:
            return len(self._data), ""
        ids = self._data.ids[selection.places]
        return len(selection), xxhash.xxh3_64_hexdigest(ids.tobytes() + selection.weights.tobytes())

    def close(self) -> None:
        self._loader.close()
        self._opened.close()


def training_steps() -> Pipeline:
    return T.Compose([T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), *_floats()])


def judging_steps() -> Pipeline:
    """Without chance."""
    return T.Compose(_floats())


def _floats() -> list[Any]:
    normalize = T.Normalize([0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616])
    return [T.ToDtype("float32", scale=True), normalize]


def judge_by(file: Path) -> Callable[[nn.Module], float]:
    """Percents of a file's images that a network gets right; they are decoded once."""
    loader = hw.DataLoader(hw.open(file, progress=False), judging_steps(), batch_size=500, progress=False)
    batches = [(batch.inputs, batch.targets) for batch in loader]

    def judge(network: nn.Module) -> float:
        network.eval()
        with torch.inference_mode():
            right = sum(int((network(x).argmax(1) == y).sum()) for x, y in batches)
        return 100 * right / sum(len(y) for _, y in batches)

    return judge


def train(settings: Settings, average: Callable[[nn.Module], None] | None = None) -> tuple[Epoch, ...]:
    """All epochs, one after the other."""
    training = Training(settings, average)
    try:
        *epochs, last = [training.epoch() for _ in range(settings.epochs)]
        if settings.test:
            last = replace(last, accuracy=judge_by(Path(settings.test))(training.network))
        return *epochs, last
    finally:
        training.close()
