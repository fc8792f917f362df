"""Does a selector save wall time where training waits for data, and what does that cost in accuracy?

CIFAR-10's files in a store at the far end of a link of 8 Mbit, which takes longer to bring an epoch than a
small convolutional network takes to learn from it, so that training stands still for most of its time. This
is what buckets (IOWA) are for: where training is stalled, their scores count margins, and what samples take
to load. All epochs go through the product's own loader, with files as they are: with every sample; with
buckets as published, without recall and with a random one, and ours; with InfoBatch; and with fresh random
shares, which look at no sample.

Seconds are those of the clock on the wall, from the first epoch to the last, without judging; bytes are those
of the link, both ways. Accuracy is that of the test images after each epoch, pairwise over the seeds. What
near-duplicates can spare over such a link is the question of `stand_ins`.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import nn

import headwater as hw
from convnets import make_network
from experiments import Difference, Found, Results
from headwater.cli.child_store import ChildStore
from headwater.cli.cpu import cpu_seconds
from headwater.cli.proxy import Proxy, Shape
from headwater.select.buckets import Buckets
from headwater.select.fresh import Fresh
from headwater.select.importance import STALLED
from headwater.select.infobatch import InfoBatch
from headwater.select.selecting import Selector
from imagesets import FOLDERS, work_in
from measuring import Bar, Cell, Flag, Options, Report, Table, main
from selecting_runs import rate_at
from small_files import make_parquet
from timed_training import BACKWARD, FORWARD, METRICS, SELECTING, WAITING, Loop, judge_by, training_steps

RATE_BITS = 8e6
WIDTH, BATCH = 8, 100
FLAGS = {
    "images": Flag(5_000, "to learn from"),
    "epochs": Flag(16, "of each run"),
    "seeds": Flag(3, "runs of each setting"),
}
QUICK = {"images": 600, "epochs": 4, "seeds": 2}
QUICK_JUDGED = 500
PARTS = (WAITING, FORWARD, BACKWARD, METRICS, SELECTING)
NONE, OURS = "none", "buckets of ours, random"
_PUBLISHED = Buckets(published=True, whole_end=False, explore=0.0)
SETTINGS: dict[str, Selector | None] = {
    NONE: None,
    "buckets as published, no recall": replace(_PUBLISHED, recall="none"),
    "buckets as published, random": _PUBLISHED,
    OURS: Buckets(),
    "infobatch": InfoBatch(),
    "fresh, 70%": Fresh(0.7),
    "fresh, 50%": Fresh(0.5),
}
CONTROLS = ("fresh, 70%", "fresh, 50%")
"""Selectors of ours that look at no sample."""
LESS, WITHIN = 1.3, 0.5
SOONER, LOST = 1.5, 0.3
Judge = Callable[[nn.Module], float]


@dataclass(frozen=True)
class Run:
    """A run, epoch by epoch: percents that are right, wall seconds and bytes so far, images, wall by part.

    `cpu` are seconds of trainer and store.
    """

    accuracy: list[float]
    seconds: list[float]
    bytes: list[int]
    images: list[int]
    parts: list[dict[str, float]]
    cpu: float

    @property
    def final(self) -> float:
        """Of the last epoch, which is the one that would be used."""
        return self.accuracy[-1]

    @property
    def wall(self) -> float:
        return self.seconds[-1]

    @property
    def moved(self) -> int:
        return self.bytes[-1]

    @property
    def stalled(self) -> float:
        """The share of the time that training waited for data, in the epoch where it was least."""
        return min(part[WAITING] / spent for part, spent in zip(self.parts, self._each, strict=True))

    @property
    def _each(self) -> list[float]:
        return [float(spent) for spent in np.diff([0.0, *self.seconds])]

    def spent(self, part: str) -> float:
        return sum(epoch[part] for epoch in self.parts)

    def seconds_to(self, accuracy: float) -> float:
        """Until an epoch ended as good as that; infinite if none did."""
        pairs = zip(self.accuracy, self.seconds, strict=True)
        return next((spent for found, spent in pairs if found >= accuracy), math.inf)

    def __str__(self) -> str:
        return f"{self.final:.2f} %, {self.wall:.1f} s, {self.moved / 1e6:.1f} MB, {self.stalled:.0%} stalled"


@dataclass(frozen=True, eq=False)
class Course:
    """One network after the other, from the same beginnings."""

    remote: hw.Dataset
    store: ChildStore
    proxy: Proxy
    judge: Judge
    epochs: int

    def train(self, setting: str, seed: int) -> Run:
        torch.manual_seed(seed)
        network = make_network(WIDTH).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with closing(self._loader(setting, seed)) as loader:
            return self._train(network, loader, reports=SETTINGS[setting] is not None)

    def _train(self, network: nn.Module, loader: hw.DataLoader, *, reports: bool) -> Run:
        rates = {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
        loop = Loop(
            loader, network, torch.optim.SGD(network.parameters(), **rates), reports=reports, rate=rate_at
        )
        found, judged, cpu = Run([], [], [], [], [], 0.0), 0.0, self._cpu()
        moved, spent = self._moved(), 0.0
        for _ in range(self.epochs):
            timed = loop.epoch()
            spent += timed.seconds
            found.seconds.append(spent)
            found.bytes.append(self._moved() - moved)
            found.images.append(timed.images)
            found.parts.append({part: timed.parts[part] for part in PARTS})
            begin = time.process_time()
            found.accuracy.append(self.judge(network))
            judged += time.process_time() - begin
        return replace(found, cpu=self._cpu() - cpu - judged)

    def _loader(self, setting: str, seed: int) -> hw.DataLoader:
        return hw.DataLoader(
            self.remote,
            training_steps(),
            batch_size=BATCH,
            shuffle=True,
            drop_last=True,  # a last batch of a few images would spoil what batch norm has learned
            seed=seed,
            select=SETTINGS[setting],
            epochs=self.epochs,
            progress=False,
        )

    def _moved(self) -> int:
        return self.proxy.bytes_down + self.proxy.bytes_up

    def _cpu(self) -> float:
        return cpu_seconds((os.getpid(), self.store.pid))


@contextmanager
def far_away(file: Path, folder: Path) -> Iterator[tuple[hw.Dataset, ChildStore, Proxy]]:
    """The data behind a slow link, the store that has it, and the link."""
    with (
        ChildStore([f"images={file}"], log=folder / "store.log") as store,
        Proxy(store.address, shape=Shape(bits_per_second=RATE_BITS)) as proxy,
        closing(hw.open(store.uri("images", through=proxy.address), progress=False)) as remote,
    ):
        yield remote, store, proxy


def find_files(folder: Path, options: Options, count: int) -> tuple[Path, Path]:
    """The file to train on, with so many images, and the one to judge by."""
    train, test = (folder / f"{part}.parquet" for part in ("train", "test"))
    if not options.data:
        make_parquet(train, count)
        make_parquet(test, QUICK_JUDGED)
        return train, test
    for target, some in ((train, count), (test, QUICK_JUDGED if options.quick else None)):
        table = pq.read_table(options.data / "cifar10" / target.name).slice(0, some)
        pq.write_table(table, target, row_group_size=500)
    return train, test


def middle(runs: Sequence[Run], of: Callable[[Run], float]) -> float:
    return statistics.median(of(run) for run in runs)


def finals(runs: Sequence[Run]) -> list[float]:
    return [run.final for run in runs]


def less(full: Sequence[Run], runs: Sequence[Run], of: Callable[[Run], float]) -> str:
    """How many times less than training on everything, seed by seed."""
    found = [of(whole) / of(run) for whole, run in zip(full, runs, strict=True)]
    return f"{statistics.median(found):.2f}x ({min(found):.2f}..{max(found):.2f})"


def sooner(runs: Sequence[Run], full: Sequence[Run]) -> float:
    """How many times less wall time than full runs it takes to be as good as these end, but for some points.

    Their time is that to the same accuracy, and all of it for one that is never so good; 0 if most of `runs`
    never are.
    """
    wanted = statistics.fmean(finals(full)) - LOST
    theirs = middle(full, lambda run: min(run.seconds_to(wanted), run.wall))
    return theirs / middle(runs, lambda run: run.seconds_to(wanted))


def table_of(found: Found) -> Table:
    """What each setting comes to."""
    full = found.of(NONE)
    rows: list[tuple[Cell, ...]] = []
    for name in SETTINGS:
        runs = found.of(name)
        rows.append(
            (
                *(name, f"{middle(runs, lambda run: run.wall):.1f}", less(full, runs, lambda run: run.wall)),
                f"{middle(runs, lambda run: run.moved) / 1e6:.1f}",
                less(full, runs, lambda run: run.moved),
                f"{middle(runs, lambda run: run.cpu):.1f}",
                *(f"{statistics.fmean(finals(runs)):.2f}", str(Difference.of(finals(runs), finals(full)))),
                f"{sooner(runs, full):.2f}x",
            )
        )
    times = ("s", "less time", "MB", "fewer bytes", "CPU s", "accuracy, %", f"- {NONE}")
    return Table(("selector", *times, f"sooner at {NONE} - {LOST:g}"), tuple(rows))


def parts_table(found: Found) -> Table:
    """Where the wall time of each setting goes."""
    rows: list[tuple[Cell, ...]] = []
    for name in SETTINGS:
        runs = found.of(name)
        shares = [middle(runs, lambda run, part=part: run.spent(part) / run.wall) for part in PARTS]
        rest = middle(runs, lambda run: 1 - sum(run.spent(part) for part in PARTS) / run.wall)
        stalled = min(run.stalled for run in runs)
        rows.append((name, *(f"{share:.1%}" for share in (*shares, rest)), f"{stalled:.0%}"))
    return Table(("of the wall time", *PARTS, "rest", "waiting, the least of an epoch"), tuple(rows))


def epochs_table(found: Found) -> Table:
    """Of the first seed: what everything and buckets of ours came to, epoch by epoch."""
    full, ours = (found.of(name)[0] for name in (NONE, OURS))
    rows = tuple(
        (
            number,
            *(f"{part:.1f}" if isinstance(part, float) else part for part in parts),
        )
        for number, parts in enumerate(
            zip(full.seconds, full.accuracy, ours.images, ours.seconds, ours.accuracy, strict=True)
        )
    )
    columns = (f"{NONE}: s so far", "accuracy, %", f"{OURS}: images", "s so far", "accuracy, %")
    return Table(("epoch", *columns), rows)


def bars_of(found: Found) -> Iterator[Bar]:
    full, ours = found.of(NONE), found.of(OURS)
    apart = Difference.of(finals(ours), finals(full))
    ratio = statistics.median(a.wall / b.wall for a, b in zip(full, ours, strict=True))
    asks = f"{LESS:g}x less wall time within {WITHIN:g} points"
    text = f"{less(full, ours, lambda run: run.wall)}, {apart} points"
    yield Bar(OURS, asks, text, ratio >= LESS and apart.mean >= -WITHIN)
    asks = f"{SOONER:g}x less time to the accuracy of {NONE} - {LOST:g} points, where it ends too"
    every = [name for name in SETTINGS if name != NONE]
    looking = [name for name in every if name not in CONTROLS]
    for what, names in (("the best of all", every), ("the best that looks at samples", looking)):
        name = max(names, key=lambda one: merit(found.of(one), full))
        ends, ratio = merit(found.of(name), full)
        apart = Difference.of(finals(found.of(name)), finals(full))
        yield Bar(f"{what}: {name}", asks, f"{ratio:.2f}x, {apart} points", ends and ratio >= SOONER)
    least = min(run.stalled for name in SETTINGS for run in found.of(name))
    what = "training waits for data, of the time, in all epochs of all runs"
    yield Bar(what, f"over {STALLED:.0%}, so that loads count", f"at least {least:.0%}", least > STALLED)


def merit(runs: Sequence[Run], full: Sequence[Run]) -> tuple[bool, float]:
    """Whether it ends as good as asked; and how much sooner it is so."""
    return Difference.of(finals(runs), finals(full)).mean >= -LOST, sooner(runs, full)


def run(folder: Path, options: Options) -> Report:
    numbers = QUICK if options.quick else {name: int(value) for name, value in options.numbers.items()}
    images, epochs, seeds = (numbers[name] for name in ("images", "epochs", "seeds"))
    file, test = find_files(folder, options, images)
    results = Results(work_in(folder, options) / f"io-bound-{images}x{epochs}.jsonl", Run)
    found = Found(results, "CIFAR-10" if options.data else "made", range(seeds))
    with far_away(file, folder) as (remote, store, proxy):
        found.make(SETTINGS, Course(remote, store, proxy, judge_by(test), epochs).train)
    return Report(
        f"selectors where training waits for {images:,} images over {RATE_BITS / 1e6:g} Mbit",
        (table_of(found), parts_table(found), epochs_table(found)),
        tuple(bars_of(found)) if options.data else (),  # made images have no accuracy
        (
            f"{epochs} epochs, {seeds} seeds, batches of {BATCH}; store, link and trainer share the cores; "
            f"{found.used}",
            "± is half of the 95 % interval of the mean difference of pairs, by Student's t",
            f"sooner: how many times less time until an epoch ends within {LOST:g} points of what all of the "
            "data comes to; 0 if most seeds never do",
            "the best is chosen and judged by the same seeds",
        ),
        raw={name: [vars(one) for one in found.of(name)] for name in SETTINGS},
    )


if __name__ == "__main__":
    main(__doc__, run, flags=FLAGS, folders={"work": FOLDERS["work"]})
