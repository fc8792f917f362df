"""How much of the time do metrics and selecting take, and do several ranks come to the same selection?

A small convolutional network is trained on CIFAR-10 through the loader, with each selector in turn, and the
wall seconds of the training loop are told apart: waiting for data, forward, backward and step, metrics (what
`report` does, and what is noted of loads), selecting (from the last batch to the end of the loop). Torch has
as many threads as there are cores, by which metrics are judged, and then one. Then for more epochs with
buckets, and with none, on 1, 2 and 4 ranks of gloo, processes of one thread, whose batches together are
as large; there selecting is also what ranks tell each other, and waiting for the last one, and the first
judges the network by the test images in the end. Buckets fill an epoch at a time: what they save in a long
run, `iowa_tables` and `confirm_convnet` tell, with what it costs in accuracy.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch

from headwater.engine.crew import available_cores
from headwater.select.medoids import Medoids
from headwater.select.selecting import Selector
from measuring import Bar, Cell, Flag, Options, Report, Table, main
from serving import PROCESSES, end
from small_files import make_parquet
from timed_training import AVERAGING, METRICS, PARTS, SELECTING, Epoch, Settings, train

NONE, BUCKETS = "none", "buckets"
SELECTORS: dict[str, str | Selector | None] = {
    NONE: None,
    "infobatch": "infobatch",
    BUCKETS: BUCKETS,
    "medoids": Medoids(explore=0.0),
}
JUDGED = ("infobatch", BUCKETS)
MOST = 0.03
"""Of the time, for metrics and selecting."""
WORLDS = (1, 2, 4)
SAMPLES = 10_000
QUICK_SAMPLES, QUICK_EPOCHS = 1_000, 3
FLAGS = {"epochs": Flag(6, "on ranks"), "rounds": Flag(3, "over everything")}
Ranked = dict[int, dict[str, list["Run"]]]
"""By the number of ranks, and by the selector."""


@dataclass(frozen=True)
class Run:
    """All epochs of each rank."""

    ranks: tuple[tuple[Epoch, ...], ...]

    @property
    def seconds(self) -> float:
        """Until the last rank was done."""
        return max(sum(epoch.seconds for epoch in epochs) for epochs in self.ranks)

    @property
    def images(self) -> int:
        return sum(epoch.images for epochs in self.ranks for epoch in epochs)

    def spent(self, *parts: str) -> float:
        """Seconds, a rank."""
        found = (epoch.parts[part] for epochs in self.ranks for epoch in epochs for part in parts)
        return sum(found) / len(self.ranks)

    def share(self, *parts: str) -> float:
        """Of the time."""
        whole = sum(epoch.seconds for epochs in self.ranks for epoch in epochs) / len(self.ranks)
        return self.spent(*parts) / whole

    @property
    def accuracy(self) -> float | None:
        """In percents, after the last epoch; None if nobody judged."""
        return self.ranks[0][-1].accuracy

    @property
    def selections(self) -> int:
        return len(self.ranks[0])

    @property
    def agreed(self) -> int:
        """Epochs after which all ranks had the same selection, all of which was visited in the next."""
        steps = list(zip(*self.ranks, strict=True))
        same = [len({(epoch.digest, epoch.chosen) for epoch in step}) == 1 for step in steps]
        whole = [sum(e.images for e in after) == before[0].chosen for before, after in pairwise(steps)]
        return sum(one and other for one, other in zip(same, [*whole, True], strict=True))


def train_ranks(settings: Settings, world: int, meeting: Path) -> Run:
    """The same run as so many processes; `meeting` is a file that is not there yet."""
    own = replace(settings, batch=settings.batch // world, workers=1)
    with ExitStack() as stack:
        children = [_start(rank, world, meeting, own) for rank in range(world)]
        for child in children:
            stack.callback(end, child)
        answers = [child.communicate()[0] for child in children]
        codes = [child.returncode for child in children]
    if any(codes):
        raise RuntimeError(f"{world} ranks ended with codes {codes}; their errors are above")
    return Run(tuple(tuple(Epoch(**epoch) for epoch in json.loads(answer)) for answer in answers))


def _start(rank: int, world: int, meeting: Path, settings: Settings) -> subprocess.Popen[str]:
    words = [sys.executable, str(PROCESSES / "rank.py"), str(rank), str(world), str(meeting)]
    paths = (str(PROCESSES.parent), os.environ.get("PYTHONPATH", ""))
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.Popen(
        [*words, json.dumps(asdict(settings))],
        env=os.environ | env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def shares_of(runs: dict[str, list[Run]], threads: int) -> Table:
    """Of the time, and the time against that of training on everything."""
    parts = [part for part in PARTS if part != AVERAGING]
    rows: list[tuple[Cell, ...]] = []
    for name, some in runs.items():
        pairs = zip(some, runs[NONE], strict=True)
        ratio = statistics.median(one.seconds / plain.seconds for one, plain in pairs)
        rows.append((name, *_parts(some, parts), f"{ratio:.2f}"))
    return Table((f"selector, threads: {threads}", *parts, "rest", f"seconds / {NONE}"), tuple(rows))


def costs_of(runs: dict[str, list[Run]], threads: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, some in runs.items():
        noted = _median(some, lambda run: 1e6 * run.spent(METRICS) / run.images)
        chosen = _median(some, lambda run: 1e3 * run.spent(SELECTING) / run.selections)
        rate = _median(some, lambda run: run.images / run.seconds)
        rows.append((name, some[0].images, round(rate), f"{noted:.1f}", f"{chosen:.1f}"))
    columns = ("samples in all epochs", "samples/s", "metrics, us a sample", "a selection, ms")
    return Table((f"selector, threads: {threads}", *columns), tuple(rows))


def ranks_of(ranked: Ranked) -> tuple[Table, Table]:
    """Where the time went, and what came of it."""
    shares: list[tuple[Cell, ...]] = []
    rows: list[tuple[Cell, ...]] = []
    for world, runs in ranked.items():
        for name, some in runs.items():
            shares.append((f"{world}, {name}", *_parts(some, PARTS)))
            rate = _median(some, lambda run: run.images / run.seconds)
            chosen = _median(some, lambda run: 1e3 * run.spent(SELECTING) / run.selections)
            gains = (_ratio(runs[NONE], some, of) for of in (lambda run: run.images, lambda run: run.seconds))
            judged = (f"{world}, {name}", round(rate), f"{chosen:.1f}", _spread(some), *gains)
            rows.append((*judged, _accuracy(some)))
    columns = ("samples/s", "exchange and selection, ms an epoch", "metrics and selecting")
    gains = ("times fewer samples", "times less time", "accuracy, %")
    return Table(("ranks", *PARTS, "rest"), tuple(shares)), Table(("ranks", *columns, *gains), tuple(rows))


def _ratio(plain: Sequence[Run], runs: Sequence[Run], of: Callable[[Run], float]) -> str:
    """Of what training on everything takes, round by round."""
    found = [of(other) / of(one) for other, one in zip(plain, runs, strict=True)]
    return f"{statistics.median(found):.2f} ({min(found):.2f}..{max(found):.2f})"


def _parts(runs: Sequence[Run], parts: Sequence[str]) -> list[str]:
    found = [statistics.median(run.share(part) for run in runs) for part in parts]
    return [f"{share:.2%}" for share in (*found, _median(runs, lambda run: 1 - run.share(*PARTS)))]


def _median(runs: Sequence[Run], value: Callable[[Run], float]) -> float:
    return statistics.median(value(run) for run in runs)


def _accuracy(runs: Sequence[Run]) -> str:
    found = [run.accuracy for run in runs if run.accuracy is not None]
    return f"{statistics.median(found):.1f} ({min(found):.1f}..{max(found):.1f})" if found else ""


def _spread(runs: Sequence[Run]) -> str:
    """Of the share that metrics and selecting have."""
    found = [run.share(METRICS, SELECTING) for run in runs]
    return f"{statistics.median(found):.2%} ({min(found):.2%}..{max(found):.2%})"


def bars_of(alone: dict[str, list[Run]], ranked: Ranked) -> list[Bar]:
    bars = []
    for name in JUDGED:
        share = _median(alone[name], lambda run: run.share(METRICS, SELECTING))
        what = f"{name}: metrics and selecting, of the time, with threads on all cores"
        bars.append(Bar(what, f"at most {MOST:.0%}", _spread(alone[name]), share <= MOST))
    for world, runs in ranked.items():
        some = runs[BUCKETS]
        asked, found = sum(run.selections for run in some), sum(run.agreed for run in some)
        what = f"ranks: {world}; selections that are the same on all, and visited whole"
        bars.append(Bar(what, f"{asked} of {asked}", f"{found} of {asked}", found == asked))
    return bars


def measure_alone(plain: Settings, threads: int) -> Iterator[tuple[str, Run]]:
    """A round: all selectors, one after the other."""
    torch.set_num_threads(threads)
    for name, selector in SELECTORS.items():
        yield name, Run((train(replace(plain, select=selector)),))


def measure_ranks(plain: Settings, folder: Path) -> Iterator[tuple[int, str, Run]]:
    """A round: as many ranks with a selector and without, one after the other; in a folder of its own."""
    folder.mkdir()
    for world in WORLDS:
        for name in (NONE, BUCKETS):
            settings = replace(plain, select=None if name == NONE else name)
            yield world, name, train_ranks(settings, world, folder / f"{world}-{name}")


def run(folder: Path, options: Options) -> Report:
    samples, rounds = (QUICK_SAMPLES, 1) if options.quick else (SAMPLES, int(options.numbers["rounds"]))
    file = (options.data / "cifar10" if options.data else folder) / "train.parquet"
    if not options.data:
        make_parquet(file, samples)
    plain = Settings(str(file.absolute()), samples)
    epochs = QUICK_EPOCHS if options.quick else int(options.numbers["epochs"])
    test = options.data / "cifar10" / "test.parquet" if options.data else None  # made images have no accuracy
    longer = replace(plain, epochs=epochs, test=str(test.absolute()) if test and not options.quick else "")
    every: dict[int, dict[str, list[Run]]] = {
        threads: {name: [] for name in SELECTORS} for threads in (available_cores(), 1)
    }
    ranked: Ranked = {world: {NONE: [], BUCKETS: []} for world in WORLDS}
    train(replace(plain, epochs=1))  # torch prepares its kernels
    for number in range(rounds):
        for threads, alone in every.items():
            for name, one in measure_alone(plain, threads):
                alone[name].append(one)
        for world, name, one in measure_ranks(longer, folder / f"round-{number}"):
            ranked[world][name].append(one)
        print(f"round {number + 1} of {rounds} is done", file=sys.stderr, flush=True)
    raw = {
        f"{name}, threads: {threads}": some for threads, runs in every.items() for name, some in runs.items()
    }
    raw |= {f"{world}, {name}": some for world, runs in ranked.items() for name, some in runs.items()}
    return Report(
        "the time of metrics and of selecting",
        (
            *(of(runs, threads) for threads, runs in every.items() for of in (shares_of, costs_of)),
            *ranks_of(ranked),
        ),
        tuple(bars_of(next(iter(every.values())), ranked)),
        (
            f"{samples:,} images, {plain.epochs} epochs, on ranks {longer.epochs}; batches of {plain.batch}, "
            f"over all ranks; medians of rounds: {rounds}; on each rank torch has one thread",
            "accuracy is that after few epochs at a constant learning rate, with one seed in all rounds: it "
            "tells whether ranks agree, not what buckets cost",
            "every selector is told loss and logits; the first selection is made before the first epoch, and "
            "one for the epoch after the last is counted in its stead",
        ),
        raw={name: [asdict(one) for one in some] for name, some in raw.items()},
    )


if __name__ == "__main__":
    main(__doc__, run, flags=FLAGS)
