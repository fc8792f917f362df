"""Do early tickets pay on CIFAR-10, and do they beat random channels and the slim shape from scratch?

Tables and figures of the Early-Bird paper at the size of one core: a small VGG, 50,000 images moved and
mirrored. Dense runs are watched by many birds; each ticket goes on from the step at which it was drawn,
with the time up to there as its own. Controls: as many channels of each layer at random, from the same
weights; the same shape from scratch, for as many steps; the dense network.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

import headwater as hw
from convnets import make_pixels, read_pixels
from experiments import Difference, Key, Results, begin_with, interpolate
from headwater.plan.prune import MaskDistance, Rule, SettledMask, make_plan
from headwater.plan.prune.distances import all_distances, by_chance
from headwater.report import write_page
from headwater.report.tickets import ticket_chapter
from headwater.train.tickets.cuts import find_cuts
from headwater.train.tickets.surgery import operate
from imagesets import FOLDERS, work_in
from measuring import Bar, Cell, Flag, Options, Report, Table, main
from ticket_runs import EXAMPLE, PENALTY, Laboratory, Recipe, Search, SearchRun, SlimRun, make_network

FLAGS = {
    "seeds": Flag(3, "runs of each setting of the main table; others have fewer"),
    "epochs": Flag(7, "of each run"),
    "width": Flag(32, "channels of the first layer"),
}
DATA = "CIFAR-10"
RATIOS = (0.3, 0.5, 0.7)
WAYS = ("ticket", "random", "scratch")
SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.6)
"""Of the run, at which tickets of one ratio are drawn whatever masks do."""
PAPERS_EPOCHS = 160
MULTIPLE = 16
BATCH = 128
NEVER = "all looks"

LARGE, SMALL, COSINE = Search(), Search("small", until=0.2), Search("cosine")
FEW_BITS = Search(until=0.2, bits=8)


@dataclass(frozen=True)
class Bird:
    """What makes an `hw.EarlyBird` for a run of so many steps."""

    ratio: float
    rule: Rule
    bits: int | None = None

    def __call__(self, model: nn.Module, *, steps: int) -> hw.EarlyBird:
        return hw.EarlyBird(
            model,
            ratio=self.ratio,
            steps=steps,
            rule=self.rule,
            l1=PENALTY,
            round_to=MULTIPLE,
            example=EXAMPLE,
            bits=self.bits,
        )


def settled(ratio: float) -> str:
    return f"settled {ratio}"


def published(ratio: float) -> str:
    return f"published {ratio}"


def epochwise(ratio: float) -> str:
    return f"published, by epochs {ratio}"


def fixed(share: float) -> str:
    return f"at {share}"


def birds_of(search: Search, steps: int, epoch: int) -> dict[str, Bird]:
    """Who looks on. One that never draws comes first: its looks are the matrix, and its bits last."""
    often = max(1, steps // PAPERS_EPOCHS)
    birds = {NEVER: Bird(0.5, MaskDistance(limit=1e-9), search.bits)}
    birds |= {settled(ratio): Bird(ratio, SettledMask()) for ratio in RATIOS}
    birds |= {published(ratio): Bird(ratio, MaskDistance(every=often)) for ratio in RATIOS}
    birds |= {epochwise(ratio): Bird(ratio, MaskDistance(every=epoch)) for ratio in RATIOS}
    shares = [share for share in SHARES if share <= search.until]
    return birds | {
        fixed(share): Bird(0.5, SettledMask(limit=1e-9, window=2, deadline=share)) for share in shares
    }


@dataclass(frozen=True)
class Slim:
    """What goes on: the ticket of a bird of a search, in one of the ways."""

    search: str
    bird: str
    way: str = "ticket"

    def __str__(self) -> str:
        return f"{self.search}, {self.bird}, {self.way}"


SEARCHES = {"dense, large rate": LARGE, "small rate": SMALL, "dense, cosine": COSINE, "8 bits": FEW_BITS}
DENSE = "dense, large rate"
MAIN = [Slim(DENSE, settled(ratio), way) for ratio in RATIOS for way in WAYS]
SWEEP = [Slim(DENSE, fixed(share)) for share in SHARES]
SCHEDULED = [
    *(Slim("small rate", fixed(share)) for share in SHARES if share <= SMALL.until),
    Slim("dense, cosine", settled(0.5)),
]
BITS = [Slim("8 bits", settled(ratio)) for ratio in RATIOS]


class Experiment:
    """All runs, made once and kept."""

    def __init__(self, folder: Path, options: Options) -> None:
        quick, work = options.quick, work_in(folder, options)
        pixels = read_pixels(options.data) if options.data else make_pixels(1_024)
        if quick:
            pixels = {name: values[:1_024] for name, values in pixels.items()}
        epochs = 2 if quick else int(options.numbers["epochs"])
        self.epoch = len(pixels["train"]) // BATCH
        self.steps = steps = epochs * self.epoch
        width = 16 if quick else int(options.numbers["width"])
        self.laboratory = Laboratory(pixels, Recipe(steps, BATCH, width), work)
        name = f"{len(pixels['train'])}x{epochs}x{width}"
        self.searches = Results(work / f"tickets-searches-{name}.jsonl", SearchRun)
        self.slims = Results(work / f"tickets-slims-{name}.jsonl", SlimRun)
        self.seeds = range(1 if quick else int(options.numbers["seeds"]))

    def make_all(self) -> None:
        """Seed by seed: what is compared runs at about the same time."""
        for seed in self.seeds:
            for slim in self.wanted(seed):
                self.slim(slim, seed)

    def wanted(self, seed: int) -> Iterator[Slim]:
        """The main table with all seeds, the rest with one."""
        yield from MAIN
        yield from (*SWEEP, *SCHEDULED, *BITS) if seed < 1 else ()

    def search(self, name: str, seed: int) -> SearchRun:
        key = Key(DATA, name, seed)
        if key not in self.searches:
            search, begin = SEARCHES[name], time.perf_counter()
            made = self.laboratory.search(search, seed, self.birds(name))
            self.searches.put(key, made)
            _tell(key, made.accuracy, made.cpu, time.perf_counter() - begin)
        return self.searches[key]

    def birds(self, search: str) -> dict[str, Callable[[nn.Module], hw.EarlyBird]]:
        found = birds_of(SEARCHES[search], self.steps, self.epoch)
        return {name: partial(bird, steps=self.steps) for name, bird in found.items()}

    def slim(self, slim: Slim, seed: int) -> SlimRun:
        run, key = self.search(slim.search, seed), Key(DATA, str(slim), seed)
        if key not in self.slims:
            begin, make = time.perf_counter(), self.birds(slim.search)[slim.bird]
            search = SEARCHES[slim.search]
            made = self.laboratory.slim(search, run, seed, name=slim.bird, make=make, way=slim.way)
            self.slims.put(key, made)
            _tell(key, made.accuracy, made.cpu, time.perf_counter() - begin)
        return self.slims[key]

    def of(self, slim: Slim, seeds: Sequence[int] | None = None) -> list[SlimRun]:
        return [self.slim(slim, seed) for seed in (self.seeds if seeds is None else seeds)]

    def dense(self, name: str = DENSE, seeds: Sequence[int] | None = None) -> list[SearchRun]:
        return [self.search(name, seed) for seed in (self.seeds if seeds is None else seeds)]

    def work(self, run: SearchRun) -> float:
        return 3.0 * BATCH * self.steps * run.macs


def _tell(key: Key, accuracy: float, cpu: float, seconds: float) -> None:
    text = f"{key.setting}, seed {key.seed}: {accuracy:.2f} %, {cpu:.0f} CPU s, {seconds:.0f} s by the clock"
    print(text, file=sys.stderr, flush=True)


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def accuracies(runs: Sequence[SlimRun | SearchRun]) -> list[float]:
    return [run.accuracy for run in runs]


def main_table(made: Experiment) -> Table:
    """Accuracy, CPU seconds and multiply-adds of whole runs, beside dense training."""
    dense = made.dense()
    seconds, work = mean([run.cpu for run in dense]), mean([made.work(run) for run in dense])
    rows: list[tuple[Cell, ...]] = [
        ("dense", "", "", f"{mean(accuracies(dense)):.2f}", "", f"{seconds:.0f}", "1.00x", "1.00x")
    ]
    for slim in MAIN:
        runs = made.of(slim)
        apart = Difference.of(accuracies(runs), accuracies(dense))
        rows.append(
            (
                f"{slim.way}, {slim.bird.split()[1]}",
                f"{mean([run.removed for run in runs]):.0%}",
                f"{mean([run.step for run in runs]) / made.steps:.0%}",
                f"{mean(accuracies(runs)):.2f}",
                str(apart),
                f"{mean([run.seconds for run in runs]):.0f}",
                f"{mean([one.cpu / run.seconds for one, run in zip(dense, runs, strict=True)]):.2f}x",
                f"{work / mean([run.work for run in runs]):.2f}x",
            )
        )
    columns = ("run, ratio", "removed", "drawn at", "accuracy", "- dense", "CPU s", "less time", "fewer MACs")
    return Table(columns, tuple(rows))


def sweep_table(made: Experiment) -> Table:
    """The paper's first figure: accuracy by the moment of the draw, at a ratio of a half."""
    rows: list[tuple[Cell, ...]] = []
    seeds = list(made.seeds)[:1]
    for slim, share in zip(SWEEP, SHARES, strict=True):
        runs, dense = made.of(slim, seeds), made.dense(seeds=seeds)
        saved = mean([one.cpu / run.seconds for one, run in zip(dense, runs, strict=True)])
        apart = mean(accuracies(runs)) - mean(accuracies(dense))
        rows.append((f"{share:.0%}", f"{mean(accuracies(runs)):.2f}", f"{apart:+.2f}", f"{saved:.2f}x"))
    return Table(("ratio 0.5, drawn at", "accuracy", "- dense", "less time"), tuple(rows))


def rules_table(made: Experiment) -> Table:
    """At which share of the run each rule draws, and in the end why."""
    rows: list[tuple[Cell, ...]] = []
    for name, search in SEARCHES.items():
        (run,) = made.dense(name, [0])
        for ratio in RATIOS:
            cells = []
            for bird in (settled(ratio), published(ratio), epochwise(ratio)):
                step, reason = run.drawn[bird]
                said = "the deadline" if "deadline" in reason else "settled"
                cells.append(f"{step / made.steps:.0%}, {said}" if step else f"not within {search.until:.0%}")
            rows.append((name, f"{ratio:g}", *cells))
    columns = ("search", "ratio", "settled", "published, 160 looks a run", "published, a look each epoch")
    return Table(columns, tuple(rows))


def schedules_table(made: Experiment) -> Table:
    """The paper's table of learning rates: searched at a rate, trained on at the large one, or at its own."""
    rows: list[tuple[Cell, ...]] = []
    for share in (share for share in SHARES if share <= SMALL.until):
        at = [made.of(Slim(name, fixed(share)), [0])[0].accuracy for name in (DENSE, "small rate")]
        rows.append((f"drawn at {share:.0%}", *(f"{value:.2f}" for value in at), f"{at[0] - at[1]:+.2f}"))
    (dense,), (ticket,) = made.dense("dense, cosine", [0]), made.of(Slim("dense, cosine", settled(0.5)), [0])
    apart = ticket.accuracy - dense.accuracy
    rows.append(("cosine: dense, ticket", f"{dense.accuracy:.2f}", f"{ticket.accuracy:.2f}", f"{apart:+.2f}"))
    return Table(("ratio 0.5, one seed", "large rate", "small rate", "difference"), tuple(rows))


def bits_table(made: Experiment) -> Table:
    """Tickets of a search in 8 bits, trained on in full precision; and what the simulation takes."""
    rows: list[tuple[Cell, ...]] = []
    for slim, ratio in zip(BITS, RATIOS, strict=True):
        (few,), (whole,) = made.of(slim, [0]), made.of(Slim(DENSE, settled(ratio)), [0])
        apart = few.accuracy - whole.accuracy
        drawn = f"{few.step / made.steps:.0%} and {whole.step / made.steps:.0%}"
        rows.append((f"{ratio:g}", f"{few.accuracy:.2f}", f"{whole.accuracy:.2f}", f"{apart:+.2f}", drawn))
    columns = ("ratio, one seed", "searched in 8 bits", "in 32", "difference", "drawn at")
    return Table(columns, tuple(rows))


def surgery_table(made: Experiment) -> Table:
    """Percents right around the surgery, before any training."""
    rows: list[tuple[Cell, ...]] = []
    for ratio in RATIOS:
        for way in ("ticket", "random"):
            runs = made.of(Slim(DENSE, settled(ratio), way))
            values = (
                [getattr(run, name) for run in runs] for name in ("before", "uncalibrated", "calibrated")
            )
            rows.append((f"{way}, {ratio:g}", *(f"{mean(some):.1f}" for some in values)))
    return Table(("accuracy around the surgery", "dense", "slim", "slim, recalibrated"), tuple(rows))


def matrix_table(made: Experiment) -> Table:
    """The paper's figure of mask distances: all looks of the first dense run, a tenth apart."""
    looks = _all_looks(made).looks
    some = [looks[round(share * (len(looks) - 1) / 10)] for share in range(11)]
    distances = all_distances([look.keep for look in some]) / by_chance(0.5)
    names = [f"{look.step / made.steps:.0%}" for look in some]
    rows = tuple(
        (name, *(f"{value:.2f}" for value in row)) for name, row in zip(names, distances, strict=True)
    )
    return Table(("masks, 1 is chance", *names), rows)


def _all_looks(made: Experiment) -> hw.EarlyBird:
    return made.laboratory.looks_of(LARGE, 0, NEVER, made.birds(DENSE)[NEVER])


def rounding_table(made: Experiment, options: Options) -> Table:
    """A training step of the shapes that a ratio of a half leaves a fifth into the run."""
    width, bird = made.laboratory.recipe.width, _all_looks(made)
    keep = bird.looks[len(bird.looks) // 5].keep.astype(np.float64)
    models: dict[str, nn.Module] = {"dense": make_network(width)}
    for name, multiple in (("half of the channels", 1), (f"rounded up to {MULTIPLE}", MULTIPLE)):
        models[name] = make_network(width)
        plan = make_plan(bird.channels, keep, ratio=0.5, multiple=multiple)
        operate(models[name], find_cuts(models[name], EXAMPLE, plan.drops()))
    return _timed(models, made, rounds=options.rounds)


def _timed(models: dict[str, nn.Module], made: Experiment, *, rounds: int) -> Table:
    images, targets = made.laboratory.batch(0, 0)
    least = dict.fromkeys(models, math.inf)
    for _ in range(rounds + 1):
        for name, model in models.items():
            begin = time.process_time()
            nn.functional.cross_entropy(model.train()(images), targets).backward()
            least[name] = min(least[name], time.process_time() - begin)
    rows = tuple(
        (name, f"{1e3 * seconds:.0f}", f"{least['dense'] / seconds:.2f}x") for name, seconds in least.items()
    )
    return Table((f"forward and backward of {len(targets)} images, the least", "CPU ms", "faster"), rows)


def bars_of(made: Experiment) -> Iterator[Bar]:
    dense, half = made.dense(), made.of(Slim(DENSE, settled(0.5)))
    saved = mean([one.cpu / run.seconds for one, run in zip(dense, half, strict=True)])
    yield Bar("ticket at 0.5, CPU time of the whole run", "1.5x less", f"{saved:.2f}x", saved >= 1.5)
    apart = Difference.of(accuracies(half), accuracies(dense))
    yield Bar("ticket at 0.5 - dense", "at most a point less", str(apart), apart.mean >= -1)
    early = [run.drawn[settled(ratio)] for run in dense for ratio in RATIOS]
    before = all(0 < step < 0.5 * made.steps for step, _ in early)
    found = f"{sum('deadline' not in reason for _, reason in early)} of {len(early)} settled"
    yield Bar("every ticket is drawn before the rate is cut", "yes", found, before)
    for way in ("random", "scratch"):
        ours, theirs = _at_equal_time(made, way)
        apart = Difference.of(ours, theirs)
        what = f"tickets - {way} at equal time, mean over ratios"
        yield Bar(what, "ahead", f"{apart}: {apart.verdict}", apart.verdict == "ahead")


def _at_equal_time(made: Experiment, way: str) -> tuple[list[float], list[float]]:
    """Seed by seed: the accuracy of tickets, and that of the other way where its front has spent as much."""
    ours, theirs = [], []
    for seed in made.seeds:
        (dense,) = made.dense(seeds=[seed])
        front = [made.of(Slim(DENSE, settled(ratio), way), [seed])[0] for ratio in RATIOS]
        points = sorted([(run.seconds, run.accuracy) for run in front] + [(dense.cpu, dense.accuracy)])
        tickets = [made.of(Slim(DENSE, settled(ratio)), [seed])[0] for ratio in RATIOS]
        ours.append(mean(accuracies(tickets)))
        times, values = [time for time, _ in points], [value for _, value in points]
        theirs.append(mean([interpolate(times, values, run.seconds) for run in tickets]))
    return ours, theirs


def notes_of(made: Experiment) -> Iterator[str]:
    yield f"searches: {made.searches.used}; slim runs: {made.slims.used}"
    (run,) = made.dense(seeds=[0])
    yield f"the bird itself, penalty and looks: {run.own / run.cpu:.2%} of the dense run's CPU time"
    (few,) = made.dense("8 bits", [0])
    slower = (few.cpu / max(map(int, few.at))) / (run.cpu / made.steps)
    yield f"a step of the simulated search in 8 bits takes {slower:.2f} times as long: it saves no time here"
    yield "± is half of the 95 % interval of the mean difference of pairs, by Student's t"


def run(folder: Path, options: Options) -> Report:
    made = Experiment(folder, options)
    made.make_all()
    tables = (main_table, sweep_table, rules_table, schedules_table, bits_table, surgery_table, matrix_table)
    if (work := options.folders["work"]) is not None:
        bird = _all_looks(made)
        chapter = ticket_chapter(bird.looks, bird.channels, ratio=0.5, plan=None, text="A dense run.")
        write_page(work / "mask-distances.html", [chapter], title="How masks settle")
    return Report(
        "early tickets of a small VGG, against random channels, the shape from scratch, and dense training",
        (*(table(made) for table in tables), rounding_table(made, options)),
        tuple(bars_of(made)) if options.data and not options.quick else (),
        tuple(notes_of(made)),
        raw={str(slim): accuracies(made.of(slim)) for slim in MAIN},
    )


if __name__ == "__main__":
    begin_with(OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="1")
    main(__doc__, run, flags=FLAGS, folders={"work": FOLDERS["work"]})
