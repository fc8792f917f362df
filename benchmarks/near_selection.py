"""Selection beside the data against selection at the trainer, over 100 Mbit: seconds, bytes, and for what?

Photos of about 110 kB in a store at the far end of a link, of which medoids, with weights, choose three
tenths for every epoch. Beside the data, the store scores its own photos with an int8 proxy that training
feeds back, and only the chosen ones cross. At the trainer, all photos cross to be scored by the network
itself, and the chosen ones cross again to be trained on. A third run trains on everything. The first two
epochs visit everything in all of them: what is fed back after the first is used in the third. Bytes are those
of the link, both ways, feedback included.

All three run on either of two plans: offloading that is planned as the run goes on, from nothing, so that no
run knows what another has found; and files as they are, as a loader has it that is told nothing.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import headwater as hw
from experiments import Difference, Found, Results
from headwater import transforms as T
from headwater.cli.child_store import ChildStore
from headwater.cli.cpu import cpu_seconds
from headwater.cli.proxy import Proxy, Shape
from headwater.cli.training import small_network
from headwater.data.synthetic import write_photos
from headwater.loader.beside import Beside, Round
from headwater.loader.curator import Elsewhere
from headwater.loader.offloading import Auto, Given
from headwater.loader.reporting import Shown
from headwater.select.medoids import Medoids
from headwater.select.samples import Samples
from headwater.select.selecting import make_selection
from headwater.select.selection import Selection
from imagesets import FOLDERS, work_in
from measuring import Bar, Flag, Options, Ratio, Report, Table, at_least, main

RATE_BITS = 100e6
SHARE, CLASSES, PIXELS, BATCH = 0.3, 8, 64, 32
WHOLE = 2
"""Epochs before there is a selection."""
FLAGS = {
    "photos": Flag(800, "to select from"),
    "epochs": Flag(16, "of each run"),
    "seeds": Flag(5, "rounds"),
}
QUICK = {"photos": 128, "epochs": 4, "seeds": 1}
NEAR, HERE, ALL = WAYS = ("beside the data", "at the trainer", "everything")
PLANS: dict[str, Given] = {"offloading": Auto(fresh=True), "files": None}
PARTS = ("waiting", "forward", "backward", "selecting")
"""`selecting` goes from the last batch to the end of the loop: scoring at the trainer, or waiting for who
scores elsewhere."""
LEAST_BYTES = 3.0
LEAST_RANK, LEAST_FEEDBACK = 0.95, 4.0


@dataclass(frozen=True)
class Run:
    """One training run: seconds, bytes over the link, CPU seconds of both ends, and percents that are right.

    `epochs` has samples, bytes and seconds by part of each, `selecting` the seconds of each selection,
    overlapped or not, `rounds` what was fed back, and `dropped` why that ended, if it did.
    """

    seconds: float
    bytes: int
    cpu: float
    accuracy: float
    epochs: list[dict[str, float]]
    selecting: list[float]
    rounds: list[dict[str, Any]]
    dropped: str

    def __str__(self) -> str:
        ended = self.dropped and f"; {self.dropped}"
        return f"{self.seconds:.1f} s, {self.bytes / 1e6:.1f} MB, {self.accuracy:.1f} %{ended}"


@dataclass
class Course:
    """A network in training, and what was noted on the way."""

    network: nn.Module
    epochs: list[dict[str, float]] = field(default_factory=list)
    selecting: list[float] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    dropped: str = ""

    def __post_init__(self) -> None:
        self._optimiser = torch.optim.AdamW(self.network.parameters(), lr=3e-3)

    def learn(self, loader: hw.DataLoader, moved: Callable[[], int]) -> None:
        """An epoch; `moved` tells bytes so far."""
        self.network.train()
        spent = dict.fromkeys(("samples", *PARTS), 0.0)
        waited, before, begin = loader.stats().waited, moved(), time.perf_counter()
        ended = begin
        for batch in loader:
            ended = self._step(batch, spent)
        end = time.perf_counter()
        spent |= {"waiting": loader.stats().waited - waited, "selecting": end - ended}
        self.epochs.append({**spent, "seconds": end - begin, "bytes": moved() - before})

    def _step(self, batch: hw.Batch, spent: dict[str, float]) -> float:
        begin = time.perf_counter()
        loss = cross_entropy(self.network(batch.inputs), batch.targets, reduction="none")
        between = time.perf_counter()
        self._optimiser.zero_grad()
        torch.autograd.backward((loss * batch.weights).mean())
        self._optimiser.step()
        end = time.perf_counter()
        spent["samples"] += len(batch)
        spent["forward"] += between - begin
        spent["backward"] += end - between
        return end


class AtTrainer:
    """A selector that looks at every photo with the network itself; they cross the link for it."""

    name = "medoids at the trainer"

    def __init__(self, course: Course, loader: hw.DataLoader, epochs: int) -> None:
        """`loader` gives all photos in their order, as the network is to see them."""
        self._course, self._loader, self._epochs = course, loader, epochs

    def attach(self, ranks: Callable[[], tuple[int, int]]) -> None:
        """There is one trainer."""

    def trained(self, seconds: float, *, whole: bool) -> None:
        """The course times its epochs itself."""

    def select_epoch(self, samples: Samples) -> Selection | None:
        if not WHOLE <= samples.epoch < self._epochs:
            return None
        begin = time.perf_counter()
        found = make_selection(Medoids(SHARE), replace(samples, **self._score()))
        self._course.selecting.append(time.perf_counter() - begin)
        return found

    def _score(self) -> dict[str, Any]:
        network = self._course.network.eval()
        parts = []
        with torch.no_grad():
            for batch in self._loader:
                logits = network(batch.inputs)
                loss = cross_entropy(logits, batch.targets, reduction="none")
                parts.append(Shown.of(loss, logits, batch.targets, vectors=True).columns)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def steps(*, training: bool) -> T.Compose:
    first = [T.RandomResizedCrop(PIXELS, scale=(0.6, 1.0))] if training else [T.Resize((PIXELS, PIXELS))]
    return T.Compose([*first, T.ToDtype("float32", scale=True), T.Normalize(0.45, 0.25)])


@dataclass(frozen=True, eq=False)
class Bench:
    """The data behind its link, and some that was held back."""

    remote: hw.Dataset
    store: ChildStore
    proxy: Proxy
    held_back: hw.Dataset
    epochs: int

    def run(self, way: str, plan: str, seed: int) -> Run:
        torch.manual_seed(seed)
        course = Course(small_network(CLASSES))
        moved, cpu, begin = self._moved(), self._cpu(), time.perf_counter()
        {NEAR: self._near, HERE: self._here, ALL: self._everything}[way](course, PLANS[plan], seed)
        seconds, moved, cpu = time.perf_counter() - begin, self._moved() - moved, self._cpu() - cpu
        accuracy = self._judge(course.network)
        kept = course.epochs, course.selecting, course.rounds, course.dropped
        return Run(seconds, moved, cpu, accuracy, *kept)

    def _moved(self) -> int:
        return self.proxy.bytes_down + self.proxy.bytes_up

    def _cpu(self) -> float:
        return cpu_seconds((os.getpid(), self.store.pid))

    def _loader(self, plan: Given, seed: int, select: Elsewhere | None = None) -> hw.DataLoader:
        return hw.DataLoader(
            self.remote,
            steps(training=True),
            batch_size=BATCH,
            shuffle=True,
            seed=seed,
            offload=plan,
            select=select,
            epochs=self.epochs,
            progress=False,
        )

    def _everything(self, course: Course, plan: Given, seed: int) -> None:
        with closing(self._loader(plan, seed)) as loader:
            for _ in range(self.epochs):
                course.learn(loader, self._moved)

    def _near(self, course: Course, plan: Given, seed: int) -> None:
        with (
            closing(Beside("medoids", self.remote, steps(training=False), share=SHARE)) as beside,
            closing(self._loader(plan, seed, beside)) as loader,
        ):
            for epoch in range(self.epochs):
                course.learn(loader, self._moved)
                if epoch + WHOLE < self.epochs:  # else there is no epoch that it could be for
                    beside.feed(course.network)
            course.rounds += [facts_of(one) for one in beside.rounds]
            course.selecting += [one["seconds"] for one in course.rounds if one["chosen"]]
            course.dropped = beside.dropped

    def _here(self, course: Course, plan: Given, seed: int) -> None:
        looking = {"batch_size": 64, "offload": plan, "progress": False}
        with closing(hw.DataLoader(self.remote, steps(training=False), **looking)) as scoring:
            select = AtTrainer(course, scoring, self.epochs)
            with closing(self._loader(plan, seed, select)) as loader:
                for _ in range(self.epochs):
                    course.learn(loader, self._moved)

    def _judge(self, network: nn.Module) -> float:
        network.eval()
        loader = hw.DataLoader(self.held_back, steps(training=False), batch_size=64, progress=False)
        with torch.no_grad():
            right = sum(int((network(x).argmax(1) == y).sum()) for x, y in loader)
        return 100 * right / len(self.held_back)


def facts_of(one: Round) -> dict[str, Any]:
    """What is kept of a round: with no `precision` if no proxy was made, and `chosen` 0 if it was lost."""
    fed = one.fed
    return {
        "epoch": one.epoch,
        "precision": fed.precision if fed else "",
        "correlation": fed.correlation if fed else None,
        "chosen": one.chosen,
        "seconds": (fed.seconds if fed else 0.0) + one.link_seconds + one.scored_seconds,
        "waited": one.waited_seconds,
        "bytes": one.bytes_moved,
    }


@contextmanager
def opened(folder: Path, count: int, epochs: int) -> Iterator[Bench]:
    photos, others = folder / "photos", folder / "others"
    write_photos(photos, count=count, classes=CLASSES, seed=1, threads=2)
    write_photos(others, count=max(64, count // 2), classes=CLASSES, seed=2, threads=2)
    flags = ["--state", folder / "state"]
    with (
        ChildStore([f"photos={photos}"], log=folder / "store.log", flags=flags) as store,
        Proxy(store.address, shape=Shape(bits_per_second=RATE_BITS)) as proxy,
        closing(hw.open(store.uri("photos", through=proxy.address), progress=False)) as remote,
    ):
        yield Bench(remote, store, proxy, hw.open(others, progress=False), epochs)


def middle(runs: Sequence[Run], of: Callable[[Run], float]) -> float:
    return statistics.median(of(run) for run in runs)


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def table_of(found: Found) -> Table:
    """What each way comes to, by medians over the rounds."""
    whole = [run.accuracy for run in found.of(ALL)]
    rows = []
    for way in WAYS:
        runs = found.of(way)
        times, right = [run.seconds for run in runs], [run.accuracy for run in runs]
        parts = (
            middle(runs, lambda run: mean([epoch["seconds"] for epoch in run.epochs[:WHOLE]])),
            middle(runs, lambda run: mean([epoch["seconds"] for epoch in run.epochs[WHOLE:]])),
            middle(runs, lambda run: mean(run.selecting)),
            middle(runs, lambda run: sum(epoch["selecting"] for epoch in run.epochs) / len(run.epochs)),
        )
        rows.append(
            (
                *(way, f"{statistics.median(times):.1f} ({min(times):.1f}..{max(times):.1f})"),
                f"{middle(runs, lambda run: run.bytes) / 1e6:.1f}",
                f"{middle(runs, lambda run: run.cpu):.1f}",
                *(f"{part:.2f}" for part in parts),
                *(f"{mean(right):.1f}", str(Difference.of(right, whole))),
            )
        )
    columns = ("s", "MB", "CPU s", "s of a whole epoch", "s of a later one", "s of a selection")
    return Table((f"{found.data}: selected", *columns, "s stood still", "right, %", f"- {ALL}"), tuple(rows))


def epochs_of(found: Found, way: str) -> Table:
    """Where the time went in the first round."""
    rows = tuple(
        (
            *(number, round(one["samples"]), *(f"{one[part]:.2f}" for part in PARTS)),
            *(f"{one['seconds']:.2f}", f"{one['bytes'] / 1e6:.2f}"),
        )
        for number, one in enumerate(found.of(way)[0].epochs)
    )
    parts = (f"{part} s" for part in PARTS)
    return Table((f"{found.data}, {way}: epoch", "samples", *parts, "s", "MB"), rows)


def feedback_table(found: Found, weights: int) -> Table:
    rows = tuple(
        (
            *(one["epoch"], f"{one['bytes'] / 1e3:.1f}", f"{weights / max(1, one['bytes']):.2f}x"),
            *(one["precision"] or "none", _rank(one), one["chosen"]),
            *(f"{one['seconds']:.2f}", f"{one['waited']:.2f}"),
        )
        for one in found.of(NEAR)[0].rounds
    )
    columns = ("kB, both ways", "fp32 weights / it", "proxy", "rank of losses", "chosen", "s", "s waited for")
    return Table((f"{found.data}, fed back for epoch", *columns), rows)


def _rank(one: dict[str, Any]) -> str:
    return "" if one["correlation"] is None else f"{one['correlation']:.3f}"


def plan_bars(found: Found) -> Iterator[Bar]:
    """Seed by seed, selection at the trainer over selection beside the data."""
    pairs = list(zip(found.of(HERE), found.of(NEAR), strict=True))
    fewer = Ratio("", "", tuple(here.bytes / near.bytes for here, near in pairs))
    sooner = Ratio("", "", tuple(here.seconds / near.seconds for here, near in pairs))
    bytes_bar = at_least(fewer, LEAST_BYTES)
    what = f"{found.data}: %s {HERE} over those {NEAR}"
    yield replace(bytes_bar, what=what % "bytes")
    yield Bar(what % "seconds", "over 1", f"{sooner.median:.2f} ({sooner.spread})", sooner.median > 1)


def proxy_bars(rounds: Sequence[Sequence[dict[str, Any]]], weights: int) -> Iterator[Bar]:
    """Of all runs beside the data; a proxy that was not int8 does not count as one, and no bar holds of none.

    The first proxy of a run goes to the store whole, and images to calibrate it come from there.
    """
    every = [one for some in rounds for one in some]
    int8 = [one for one in every if one["precision"] == "int8"]
    ranks = [one["correlation"] for one in int8]
    found = f"{min(ranks):.3f}, " if ranks else ""
    holds = bool(every) and len(int8) == len(every) and min(ranks) >= LEAST_RANK
    asked = f"at least {LEAST_RANK}, int8 in all rounds"
    what = "rank correlation of the proxy's losses with fp32, the least"
    yield Bar(what, asked, f"{found}int8 in {len(int8)} of {len(every)} rounds", holds)
    saved = [weights / one["bytes"] for some in rounds for one in some[1:] if one["chosen"]]
    less = statistics.median(saved) if saved else 0.0
    what = "fp32 weights over a round's feedback, from the second on"
    yield Bar(what, f"at least {LEAST_FEEDBACK:g}x", f"{less:.2f}x", less >= LEAST_FEEDBACK)


def make_all(folder: Path, options: Options, numbers: dict[str, int]) -> list[Found]:
    """The runs of each plan; those that were made before are not made again."""
    count, epochs, seeds = (numbers[name] for name in ("photos", "epochs", "seeds"))
    results = Results(work_in(folder, options) / f"near-selection-{count}x{epochs}.jsonl", Run)
    found = [Found(results, plan, range(seeds)) for plan in PLANS]
    with opened(folder, count, epochs) as bench:
        for one in found:
            one.make(WAYS, lambda way, seed, plan=one.data: bench.run(way, plan, seed))
    return found


def run(folder: Path, options: Options) -> Report:
    numbers = QUICK if options.quick else {name: int(value) for name, value in options.numbers.items()}
    weights = 4 * sum(tensor.numel() for tensor in small_network(CLASSES).state_dict().values())
    found = make_all(folder, options, numbers)
    fed = [run.rounds for one in found for run in one.of(NEAR)]
    ended = [f"{one.data}: {run.dropped}" for one in found for run in one.of(NEAR) if run.dropped]
    return Report(
        f"medoids for {SHARE:.0%} of {numbers['photos']:,} photos, {RATE_BITS / 1e6:g} Mbit: {NEAR}, and not",
        (
            *map(table_of, found),
            *(epochs_of(one, way) for one in found for way in (NEAR, HERE)),
            *(feedback_table(one, weights) for one in found),
        ),
        (*(bar for one in found for bar in plan_bars(one)), *proxy_bars(fed, weights)),
        (
            f"{numbers['epochs']} epochs, batches of {BATCH}, {PIXELS} pixels; {numbers['seeds']} rounds; a "
            f"network of {weights / 1e3:,.0f} kB in fp32; {found[0].used}",
            "store, link and trainer share the cores; a selection beside the data overlaps training, which "
            "stood still for it, in an epoch, only as long as it says",
            "tables of epochs and of what is fed back are those of the first round",
            *(f"selection ended early, {one}" for one in ended),
        ),
        raw={one.data: {way: [vars(run) for run in one.of(way)] for way in WAYS} for one in found},
    )


if __name__ == "__main__":
    main(__doc__, run, flags=FLAGS, folders={"work": FOLDERS["work"]})
