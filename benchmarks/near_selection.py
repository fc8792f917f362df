"""Selection beside the data against selection at the trainer, over 100 Mbit: seconds, bytes, and for what?

Photos of about 110 kB in a store at the far end of a link, of which medoids, with weights, choose three
tenths for every epoch. Beside the data, the store scores its own photos with an int8 proxy that training
feeds back, and only the chosen ones cross. At the trainer, all photos cross, as the crops that are to be
trained on; the network itself scores them, and those that it chooses are trained on as they came, which takes
memory for one epoch of them. In one more run, in the first round only, the trainer keeps nothing: photos
cross without chance to be scored, and the chosen ones cross again. A last run trains on everything. Bytes are
those of the link, both ways, feedback included.

The first epoch visits everything in all runs. The trainer selects from the second on; beside the data, what
is fed back after the first is used in the third, and the second visits a random share as large. So the bytes
that are saved tend to those of seven tenths of the photos only as epochs go on: a table has the ratios after
some of them.

All run on either of two plans: offloading that is planned as the run goes on, from nothing, so that no run
knows what another has found; and files as they are, as a loader has it that is told nothing.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

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
SHARE, CLASSES, PIXELS, BATCH = 0.3, 8, 64, 24
WHOLE, LATER = 1, 2
"""Epochs that visit everything; and that many after it was fed, weights are selected by."""
FLAGS = {
    "photos": Flag(240, "to select from"),
    "epochs": Flag(56, "of each run"),
    "seeds": Flag(3, "rounds"),
}
QUICK = {"photos": 128, "epochs": 4, "seeds": 1}
NEAR, HERE, ALL = WAYS = ("beside the data", "at the trainer", "everything")
TWICE = "at the trainer, fetched again"
AFTER = (8, 16, 24, 40)
"""Epochs after which bytes so far are compared."""
PLANS: dict[str, Given] = {"offloading": Auto(fresh=True), "files": None}
PARTS = ("waiting", "forward", "backward", "selecting")
"""`selecting` is what scoring at the trainer takes, but waiting for what is kept is waiting; or it is waiting
for who scores elsewhere."""
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

    def learn(self, loader: hw.DataLoader, moved: Callable[[], int], choose: Choose | None = None) -> None:
        """An epoch, of those that `choose` says if it is given; `moved` tells bytes so far."""
        spent = dict.fromkeys(("samples", *PARTS), 0.0)
        waited, before, begin = loader.stats().waited, moved(), time.perf_counter()
        batches: Iterable[Any] = loader if choose is None else choose(loader)
        began = ended = time.perf_counter()
        chose = began - begin - (loader.stats().waited - waited)
        self.network.train()
        for batch in batches:
            ended = self._step(batch, spent)
        end = time.perf_counter()
        spent |= {"waiting": loader.stats().waited - waited, "selecting": chose + end - ended}
        self.epochs.append({**spent, "seconds": end - begin, "bytes": moved() - before})

    def _step(self, batch: hw.Batch | Some, spent: dict[str, float]) -> float:
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


@dataclass(frozen=True)
class Some:
    """A batch of what is kept."""

    inputs: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor

    def __len__(self) -> int:
        return len(self.targets)


Choose = Callable[[hw.DataLoader], list[Some]]


class Keeping:
    """Scores all photos of an epoch at the trainer, and keeps those that it chooses, as they came."""

    def __init__(self, course: Course, *, seed: int, epochs: int) -> None:
        self._course, self._facts = course, {"seed": seed, "epochs": epochs}

    def choose(self, loader: hw.DataLoader) -> list[Some]:
        """What the epoch that comes is to be trained on."""
        begin, epoch = time.perf_counter(), loader.epoch
        batches: list[hw.Batch] = []
        columns = score_all(self._course.network, loader, batches.append)
        ids, targets = (torch.cat([getattr(one, name) for one in batches]) for name in ("ids", "targets"))
        samples = Samples.of(ids.numpy(), targets.numpy(), **columns, **self._facts, epoch=epoch)
        chosen = make_selection(Medoids(SHARE, explore=0.0), samples)
        order = np.random.default_rng((self._facts["seed"], epoch)).permutation(len(chosen))
        places, weights = chosen.places[order], torch.from_numpy(chosen.weights[order])
        inputs = torch.cat([one.inputs for one in batches])[places]
        self._course.selecting.append(time.perf_counter() - begin)
        parts = (values.split(BATCH) for values in (inputs, targets[places], weights))
        return [Some(*part) for part in zip(*parts, strict=True)]


class FetchedAgain:
    """Selects for a loader by a look at every photo with the network itself; they cross the link for it."""

    name = "medoids at the trainer"
    state: ClassVar[dict[str, str]] = {}

    def __init__(self, course: Course, loader: hw.DataLoader, epochs: int) -> None:
        """`loader` gives all photos in their order, as the network is to see them."""
        self._course, self._loader, self._epochs = course, loader, epochs

    def attach(self, ranks: Callable[[], tuple[int, int]]) -> None:
        """There is one rank, whoever asks."""

    def resume(self, selection: Selection) -> None:
        """No run of this is saved."""

    def trained(self, seconds: float, *, whole: bool, visited: int, everything: int) -> None:
        """It goes on, whatever it costs."""

    def select_epoch(self, samples: Samples) -> Selection | None:
        if not WHOLE <= samples.epoch < self._epochs:
            return None
        begin = time.perf_counter()
        scored = replace(samples, **score_all(self._course.network, self._loader))
        found = make_selection(Medoids(SHARE, explore=0.0), scored)
        self._course.selecting.append(time.perf_counter() - begin)
        return found


def score_all(
    network: nn.Module, loader: hw.DataLoader, keep: Callable[[hw.Batch], None] | None = None
) -> dict[str, Any]:
    """Columns of what the network shows of all photos, in the order in which they come."""
    network.eval()
    parts = []
    with torch.no_grad():
        for batch in loader:
            logits = network(batch.inputs)
            loss = cross_entropy(logits, batch.targets, reduction="none")
            parts.append(Shown.of(loss, logits, batch.targets, vectors=True).columns)
            if keep is not None:
                keep(batch)
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
        ways = {NEAR: self._near, HERE: self._here, TWICE: self._twice, ALL: self._everything}
        ways[way](course, PLANS[plan], seed)
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
                if epoch + LATER < self.epochs:  # else there is no epoch that it could be for
                    beside.feed(course.network)
            course.rounds += [facts_of(one) for one in beside.rounds]
            course.selecting += [one["seconds"] for one in course.rounds if one["chosen"]]
            course.dropped = beside.dropped

    def _here(self, course: Course, plan: Given, seed: int) -> None:
        keeping = Keeping(course, seed=seed, epochs=self.epochs)
        with closing(self._loader(plan, seed)) as loader:
            for epoch in range(self.epochs):
                course.learn(loader, self._moved, keeping.choose if epoch >= WHOLE else None)

    def _twice(self, course: Course, plan: Given, seed: int) -> None:
        looking = {"batch_size": 64, "offload": plan, "progress": False}
        with closing(hw.DataLoader(self.remote, steps(training=False), **looking)) as scoring:
            select = FetchedAgain(course, scoring, self.epochs)
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
        "passed_over": one.passed_over,
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


def runs_of(found: Found, way: str) -> list[Run]:
    """One that is there to be seen beside the others was made in the first round only."""
    return replace(found, seeds=found.seeds[:1]).of(way) if way == TWICE else found.of(way)


def table_of(found: Found) -> Table:
    """What each way comes to, by medians over the rounds."""
    whole = [run.accuracy for run in found.of(ALL)]
    rows = []
    for way in (NEAR, HERE, TWICE, ALL):
        runs = runs_of(found, way)
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
                *(f"{mean(right):.1f}", str(Difference.of(right, whole[: len(right)]))),
            )
        )
    columns = ("s", "MB", "CPU s", "s of a whole epoch", "s of a later one", "s of a selection")
    return Table((f"{found.data}: selected", *columns, "s stood still", "right, %", f"- {ALL}"), tuple(rows))


def ratios_of(found: Found) -> Table:
    """Bytes and seconds of the others over those beside the data, by medians over the rounds."""
    last = len(found.of(NEAR)[0].epochs)
    after = [*(count for count in AFTER if count < last), last]
    rows = []
    for way in (HERE, TWICE, ALL):
        pairs = list(zip(runs_of(found, way), found.of(NEAR), strict=False))
        spans = [slice(count) for count in after] + [slice(WHOLE, None)]
        ratios = [
            statistics.median(_moved_in(a, span) / _moved_in(b, span) for a, b in pairs) for span in spans
        ]
        seconds = statistics.median(a.seconds / b.seconds for a, b in pairs)
        rows.append((way, *(f"{ratio:.2f}" for ratio in (*ratios, seconds))))
    columns = (*(f"bytes, {count} epochs" for count in after), f"without the first {WHOLE}", "seconds, all")
    return Table((f"{found.data}: / {NEAR}", *columns), tuple(rows))


def _moved_in(run: Run, span: slice) -> float:
    return sum(epoch["bytes"] for epoch in run.epochs[span])


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

    The first proxy of a run goes to the store whole, and images to calibrate it come from there. Where a
    round was still under way when weights were fed, no proxy was made of them.
    """
    every = [one for some in rounds for one in some if not one.get("passed_over")]
    over = sum(len(some) for some in rounds) - len(every)
    int8 = [one for one in every if one["precision"] == "int8"]
    ranks = [one["correlation"] for one in int8]
    found = f"{min(ranks):.3f}, " if ranks else ""
    holds = bool(every) and len(int8) == len(every) and min(ranks) >= LEAST_RANK
    asked = f"at least {LEAST_RANK}, int8 in all rounds"
    what = "rank correlation of the proxy's losses with fp32, the least"
    yield Bar(what, asked, f"{found}int8 in {len(int8)} of {len(every)} rounds, {over} passed over", holds)
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
            for seeds, ways in ((one.seeds, WAYS), (one.seeds[:1], (TWICE,))):
                replace(one, seeds=seeds).make(
                    ways, lambda way, seed, plan=one.data: bench.run(way, plan, seed)
                )
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
            *(table for one in found for table in (table_of(one), ratios_of(one))),
            *(epochs_of(one, way) for one in found for way in (NEAR, HERE)),
            *(feedback_table(one, weights) for one in found),
        ),
        (*(bar for one in found for bar in plan_bars(one)), *proxy_bars(fed, weights)),
        (
            f"{numbers['epochs']} epochs, batches of {BATCH}, {PIXELS} pixels; {numbers['seeds']} rounds; a "
            f"network of {weights / 1e3:,.0f} kB in fp32; {found[0].used}",
            "store, link and trainer share the cores; a selection beside the data overlaps training, which "
            "stood still for it, in an epoch, only as long as it says",
            f"the first {WHOLE} epochs visit everything; from then on {SHARE:.0%}, which is at most "
            f"{1 / SHARE:.2f}x fewer bytes, in a run without end",
            f"{TWICE}: one round",
            "tables of epochs and of what is fed back are those of the first round",
            *(f"selection ended early, {one}" for one in ended),
        ),
        raw={one.data: {way: [vars(run) for run in one.of(way)] for way in WAYS} for one in found},
    )


if __name__ == "__main__":
    main(__doc__, run, flags=FLAGS, folders={"work": FOLDERS["work"]})
