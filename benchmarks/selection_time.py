"""How much of the time do metrics and selecting take, and do several ranks come to the same selection?

A small convolutional network is trained on CIFAR-10 through the loader, with each selector in turn, and the
wall seconds of the training loop are told apart: waiting for data, forward, backward and step, metrics (what
`report` does, and what is noted of loads), selecting (from the last batch to the end of the loop). Then with
buckets on 1, 2 and 4 ranks of gloo, processes with one thread each, whose batches together are as large;
there selecting is also what ranks tell each other, and waiting for the last one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch

from measuring import Bar, Cell, Flag, Options, Report, Table, main
from serving import PROCESSES, end
from small_files import make_parquet
from timed_training import AVERAGING, METRICS, PARTS, SELECTING, Epoch, Settings, train

NONE = "none"
SELECTORS = (NONE, "infobatch", "buckets", "medoids")
JUDGED = ("infobatch", "buckets")
MOST = 0.03
"""Of the time, for metrics and selecting."""
WORLDS = (1, 2, 4)
SAMPLES, ROUNDS = 10_000, 5
QUICK_SAMPLES = 1_000
FLAGS = {"threads": Flag(1, "of torch, where there are no ranks: a busy machine slows down several of them")}


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


def shares_of(runs: dict[str, list[Run]]) -> Table:
    """Of the time, and the time against that of training on everything."""
    parts = [part for part in PARTS if part != AVERAGING]
    rows: list[tuple[Cell, ...]] = []
    for name, some in runs.items():
        pairs = zip(some, runs[NONE], strict=True)
        ratio = statistics.median(one.seconds / plain.seconds for one, plain in pairs)
        rows.append((name, *_parts(some, parts), f"{ratio:.2f}"))
    return Table(("selector", *parts, "rest", f"seconds / {NONE}"), tuple(rows))


def costs_of(runs: dict[str, list[Run]]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, some in runs.items():
        noted = _median(some, lambda run: 1e6 * run.spent(METRICS) / run.images)
        chosen = _median(some, lambda run: 1e3 * run.spent(SELECTING) / run.selections)
        rate = _median(some, lambda run: run.images / run.seconds)
        rows.append((name, some[0].images, round(rate), f"{noted:.1f}", f"{chosen:.1f}"))
    columns = ("selector", "samples in all epochs", "samples/s", "metrics, us a sample", "a selection, ms")
    return Table(columns, tuple(rows))


def ranks_of(runs: dict[int, list[Run]]) -> tuple[Table, Table]:
    """Where the time went, and what came of it."""
    shares: list[tuple[Cell, ...]] = [(str(world), *_parts(some, PARTS)) for world, some in runs.items()]
    rows: list[tuple[Cell, ...]] = []
    for world, some in runs.items():
        rate = _median(some, lambda run: run.images / run.seconds)
        chosen = _median(some, lambda run: 1e3 * run.spent(SELECTING) / run.selections)
        rows.append((str(world), round(rate), f"{chosen:.1f}", _spread(some)))
    columns = ("ranks", "samples/s", "exchange and selection, ms an epoch", "metrics and selecting")
    return Table(("ranks", *PARTS, "rest"), tuple(shares)), Table(columns, tuple(rows))


def _parts(runs: Sequence[Run], parts: Sequence[str]) -> list[str]:
    found = [statistics.median(run.share(part) for run in runs) for part in parts]
    return [f"{share:.2%}" for share in (*found, _median(runs, lambda run: 1 - run.share(*PARTS)))]


def _median(runs: Sequence[Run], value: Callable[[Run], float]) -> float:
    return statistics.median(value(run) for run in runs)


def _spread(runs: Sequence[Run]) -> str:
    """Of the share that metrics and selecting have."""
    found = [run.share(METRICS, SELECTING) for run in runs]
    return f"{statistics.median(found):.2%} ({min(found):.2%}..{max(found):.2%})"


def bars_of(alone: dict[str, list[Run]], ranked: dict[int, list[Run]]) -> list[Bar]:
    bars = []
    for name in JUDGED:
        share = _median(alone[name], lambda run: run.share(METRICS, SELECTING))
        what = f"{name}: metrics and selecting, of the time"
        bars.append(Bar(what, f"at most {MOST:.0%}", _spread(alone[name]), share <= MOST))
    for world, some in ranked.items():
        asked, found = sum(run.selections for run in some), sum(run.agreed for run in some)
        what = f"ranks: {world}; selections that are the same on all, and visited whole"
        bars.append(Bar(what, f"{asked} of {asked}", f"{found} of {asked}", found == asked))
    return bars


def run(folder: Path, options: Options) -> Report:
    samples, rounds = (QUICK_SAMPLES, 1) if options.quick else (SAMPLES, ROUNDS)
    file = (options.data / "cifar10" if options.data else folder) / "train.parquet"
    if not options.data:
        make_parquet(file, samples)
    plain = Settings(str(file.absolute()), samples)
    buckets = replace(plain, select="buckets")
    threads = int(options.numbers["threads"])
    torch.set_num_threads(threads)
    train(replace(plain, epochs=1))  # torch prepares its kernels
    alone: dict[str, list[Run]] = {name: [] for name in SELECTORS}
    ranked: dict[int, list[Run]] = {world: [] for world in WORLDS}
    for number in range(rounds):
        for name, some in alone.items():
            some.append(Run((train(replace(plain, select=None if name == NONE else name)),)))
        for world, others in ranked.items():
            others.append(train_ranks(buckets, world, folder / f"meeting-{number}-{world}"))
        print(f"round {number + 1} of {rounds} is done", file=sys.stderr, flush=True)
    return Report(
        "the time of metrics and of selecting",
        (shares_of(alone), costs_of(alone), *ranks_of(ranked)),
        tuple(bars_of(alone, ranked)),
        (
            f"{samples:,} images, {plain.epochs} epochs, batches of {plain.batch} over all ranks; medians of "
            f"rounds: {rounds}; threads of torch without ranks: {threads}, on each rank: 1",
            "every selector is told loss and logits; the first selection is made before the first epoch, and "
            "one for the epoch after the last is counted in its stead",
        ),
        raw={str(name): [asdict(one) for one in some] for name, some in (alone | ranked).items()},
    )


if __name__ == "__main__":
    main(__doc__, run, flags=FLAGS)
