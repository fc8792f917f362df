"""One training run with a selector, as a loader would have it: signals, a selection an epoch, weights.

What is trained is a `Learner`. CPU seconds are told apart: training; scoring, a forward pass over all samples
for selectors that look at their vectors; metrics, what is noted of each sample; selecting.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from experiments import Run
from headwater.data.index import Index
from headwater.loader.curator import Curator
from headwater.measure.signals import Signals
from headwater.select.redundancy import stand_ins
from headwater.select.samples import Samples
from headwater.select.scoring import Gradients, score
from headwater.select.selecting import Selector, make_selection
from headwater.select.selection import Selection
from headwater.select.uniform import Uniform
from headwater.store.dataset import Dataset

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

PARTS = ("training", "metrics", "scoring", "selecting")
CACHED, PATIENCE = 0.2, 3
"""The share of all samples that is at hand, for near-duplicates to be served from, and in how many epochs."""
_WARM_UP = 0.05
_BYTES = 1_000


class Learner(Protocol):
    """Something that is trained step by step; places are rows of its training samples."""

    @property
    def labels(self) -> Ints: ...
    def begin(self, seed: int) -> None: ...
    def step(self, places: Ints, weights: Floats | None, rate: float) -> Floats:
        """One step at this share of the learning rate; the logits that it was made from."""
        ...

    def score(self, places: Ints) -> Floats:
        """Logits, nothing learnt."""
        ...

    def judge(self) -> float:
        """Percents of test accuracy."""
        ...


class Redundant:
    """A selector, with near-duplicates dropped, or with those that are `cached` serving for the others.

    A sample that was not served itself for `PATIENCE` epochs is.
    """

    state: ClassVar[dict[str, str]] = {}

    def __init__(self, selector: Selector, cached: NDArray[np.bool_] | None) -> None:
        self.name, self._selector, self._cached = selector.name, selector, cached
        self._read: NDArray[np.int32] | None = None

    def attach(self, ranks: Callable[[], tuple[int, int]]) -> None:
        """There is one rank, whoever asks."""

    def resume(self, selection: Selection) -> None:
        """No run of this is saved."""

    def trained(self, seconds: float, *, whole: bool, visited: int, everything: int) -> None:
        """It goes on, whatever it costs."""

    def select_epoch(self, samples: Samples) -> Selection:
        if self._cached is None:
            return make_selection(self._selector, samples, redundancy="drop")
        if self._read is None:
            self._read = np.full(len(samples), -1, np.int32)
        found = make_selection(self._selector, samples)
        others = stand_ins(samples, found.places, cached=self._cached, read=self._read, patience=PATIENCE)
        found = replace(found, stand_ins=others)
        self._read[found.served] = samples.epoch
        return found


@dataclass(frozen=True)
class Setting:
    """How a run selects: anew `every` so many epochs. What it does with near-duplicates needs groups.

    `scored` asks for a forward pass over all samples before each selection that looks at vectors, and in
    every epoch if it looks at recent losses too; without it they are those that training itself has shown,
    some epochs ago.
    """

    selector: Selector = field(default_factory=Uniform)
    scored: bool = True
    every: int = 1
    redundancy: Literal["keep", "drop", "repeat"] = "keep"


@dataclass(frozen=True)
class Recipe:
    """How long a run is, and after how many batches signals are noted: all at once, or as they come."""

    epochs: int
    batch: int = 256
    noted_every: int = 1 << 30


@dataclass(frozen=True)
class Before:
    """What there is before a run: columns of signals, and the CPU seconds of scoring that they took."""

    columns: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    seconds: float = 0.0


NOTHING = Before()


def train(
    learner: Learner,
    setting: Setting,
    recipe: Recipe,
    *,
    seed: int,
    before: Before = NOTHING,
) -> Run:
    """From nothing to the last epoch."""
    made = _Training(learner, setting, recipe, seed=seed, before=before)
    for epoch in range(recipe.epochs):
        made.run(epoch)
    return replace(made.found, wall=made.clock.wall)


class _Training:
    def __init__(
        self,
        learner: Learner,
        setting: Setting,
        recipe: Recipe,
        *,
        seed: int,
        before: Before,
    ) -> None:
        self._learner, self._setting, self._recipe, self._seed = learner, setting, recipe, seed
        self._selector, self._data = setting.selector, _dataset(learner.labels)
        self._curator = Curator(
            self._whole(), self._data, seed=seed, epochs=recipe.epochs, ranks=lambda: (0, 1)
        )
        for name, values in before.columns.items():
            self._curator.signals.column(name)[:] = values
        self._notes = _Notes(self._curator.signals, self._data, self._selector.needs)
        self._scored = setting.scored and "vectors" in self._selector.needs
        self.clock = _Clock()
        self.clock.spent["scoring"] += before.seconds
        self.found = Run([], [], [], [], [], [], self.clock.spent, 0.0)
        learner.begin(seed)

    def _whole(self) -> Selector | Redundant:
        way = self._setting.redundancy
        if way == "keep":
            return self._selector
        cached = np.random.default_rng(self._seed).random(len(self._data)) < CACHED
        return Redundant(self._selector, cached if way == "repeat" else None)

    def run(self, epoch: int) -> None:
        """Score if need be, select, train, judge."""
        clock, found = self.clock, self.found
        selecting = epoch % self._setting.every == 0
        if self._scored and (selecting or "peak" in self._selector.needs):
            self._score(epoch)
        if selecting:
            with clock("selecting"):
                self._selection = self._curator.begin(epoch)
        selection = self._selection
        steps = self._train(epoch, selection)
        found.accuracy.append(self._learner.judge())
        found.steps.append(steps)
        found.visited.append(len(selection))
        found.effective.append(selection.effective)
        found.stood_in.append(0 if selection.stand_ins is None else int((selection.stand_ins >= 0).sum()))
        found.seconds.append(clock.total)

    def _score(self, epoch: int) -> None:
        """All but what was dropped for good."""
        signals = self._curator.signals
        places = np.flatnonzero(signals.bucket == 0) if signals.has("bucket") else self._data.positions()
        with self.clock("scoring"):
            logits = self._learner.score(places)
        with self.clock("metrics"):
            self._notes.put(places, logits, epoch)

    def _train(self, epoch: int, selection: Selection) -> int:
        clock, served = self.clock, selection.served
        order = np.random.default_rng((self._seed, epoch)).permutation(len(selection))
        batches = np.array_split(order, max(1, round(len(order) / self._recipe.batch)))
        alike = bool((selection.weights == 1).all())
        noting = bool(self._selector.needs) and not self._scored
        pending: list[tuple[Ints, Floats]] = []
        for number, batch in enumerate(batches):
            with clock("training"):
                rate = rate_at((epoch + number / len(batches)) / self._recipe.epochs)
                weights = None if alike else selection.weights[batch]
                pending.append((served[batch], self._learner.step(served[batch], weights, rate)))
            if noting and (len(pending) == self._recipe.noted_every or number == len(batches) - 1):
                with clock("metrics"):
                    places, logits = (np.concatenate(part) for part in zip(*pending, strict=True))
                    self._notes.put(places, logits, epoch)
                pending = []
        return len(batches)


class _Clock:
    """CPU seconds by what they were spent on, and those of a clock on the wall."""

    def __init__(self) -> None:
        self.spent, self.wall = dict.fromkeys(PARTS, 0.0), 0.0

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin, wall = time.process_time(), time.perf_counter()
        yield
        self.spent[part] += time.process_time() - begin
        self.wall += time.perf_counter() - wall

    @property
    def total(self) -> float:
        return sum(self.spent.values())


class _Notes:
    """Puts into a table what logits tell, and vectors if a selector asks for them."""

    def __init__(self, signals: Signals, data: Dataset, needs: tuple[str, ...]) -> None:
        self._signals, self._ids, self._labels = signals, data.ids, data.labels
        self._gradients = Gradients(int(data.labels.max()) + 1) if "vectors" in needs else None

    def put(self, places: Ints, logits: Floats, epoch: int) -> None:
        labels = self._labels[places]
        shown = score(logits, labels)
        self._signals.record(
            self._ids[places],
            shown.loss,
            epoch=epoch,
            probability=shown.probability,
            margin=shown.margin,
            vectors=None if self._gradients is None else self._gradients.make(logits, labels),
        )


def rate_at(progress: float) -> float:
    """The share of the learning rate: up for a while, then down along a cosine, by the true steps."""
    if progress < _WARM_UP:
        return progress / _WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (progress - _WARM_UP) / (1 - _WARM_UP)))


def _dataset(labels: Ints) -> Dataset:
    """Samples that lie nowhere, with ids and labels."""
    keys = [f"{number:08d}" for number in range(len(labels))]
    index = Index.build(keys, np.full(len(labels), _BYTES), labels=labels)
    return Dataset(SimpleNamespace(index=index))  # type: ignore[arg-type]
