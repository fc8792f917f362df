"""What a hundred requests in sequence come to, each on the journal that the one before it wrote.

Every request takes some samples out and lets some join. In the end: distance to training again with all of
it, over that of doing nothing. With --work a run that was stopped goes on with the request that it was at.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from experiments import Key, Results, begin_with
from frozen import open_frozen
from headwater.train.replay.batches import Batches, FullBatch, Minibatches
from headwater.train.replay.features import Features
from headwater.train.replay.journal import Journal
from headwater.train.replay.outcome import Retrained
from headwater.train.replay.retraining import retrain
from imagesets import FOLDERS, work_in
from measuring import Bar, Cell, Options, Report, Table, main
from replays import Asked, as_features, record

MOST = 0.1
TOLERANCES = {"full batch": 0.01, "batches of 1,024": 0.05}
_SHOWN = (1, 5, 10, 20, 50, 100)


def settings_of(count: int, options: Options) -> dict[str, Batches]:
    full, epochs = (40, 2) if options.quick else (200, 12)
    return {
        "full batch": FullBatch(count, full),
        "batches of 1,024": Minibatches(count, 1024, epochs, seed=17),
    }


def one_by_one(data: Features, count: int, number: int) -> Iterator[Asked]:
    """Two go and one comes, each time others."""
    rng = np.random.default_rng(19)
    gone = rng.choice(data.ids[:count], 2 * number, replace=False)
    new = rng.choice(data.ids[count:], number, replace=False)
    for place in range(number):
        yield Asked("both", 3, gone[2 * place : 2 * place + 2], new[place : place + 1])


@dataclass(frozen=True)
class Served:
    """One request: CPU seconds, estimate, whether it was trained in full.

    After some of them: the distance ratio, and the CPU seconds of training again with all so far; else NaN.
    """

    seconds: float
    estimate: float
    trained: bool
    ratio: float
    exact: float

    @property
    def cpu(self) -> float:
        return self.seconds + (0.0 if math.isnan(self.exact) else self.exact)

    def __str__(self) -> str:
        return f"ratio {self.ratio:.2g} (estimate {self.estimate:.2g}), {self.seconds:.2g} CPU s"


class Sequence:
    """Requests one after the other; the journal after each, and what came of it, are kept in a folder."""

    def __init__(self, work: Path, data: Features, count: int, *, name: str, options: Options) -> None:
        self._data, self._name, self._tolerance = data, name, TOLERANCES[name]
        self.number = 5 if options.quick else 100
        self._kind = f"{data.source}{', quick' if options.quick else ''}, {name}"
        self.results = Results(work / "replay_sequence.jsonl", Served)
        self._path = work / f"sequence, {self._kind}"
        self._asked = list(one_by_one(data, count, self.number))
        self._first = record(self._after(0), data, count, settings_of(count, options)[name])

    def serve(self) -> list[Served]:
        for place in range(1, self.number + 1):
            key = Key("requests", self._kind, place)
            if key not in self.results:
                self.results.put(key, self._ask(place))
                print(f"{self._name}, {place}: {self.results[key]}", file=sys.stderr, flush=True)
            if place > 1:
                self._after(place - 1).unlink(missing_ok=True)
        return [self.results[Key("requests", self._kind, place)] for place in range(1, self.number + 1)]

    def _ask(self, place: int) -> Served:
        asked, path = self._asked[place - 1], self._after(place)
        path.unlink(missing_ok=True)  # of one that was stopped before its result was kept
        before = Journal(self._after(place - 1), self._data)
        done = retrain(before, asked.remove, asked.add, tolerance=self._tolerance, keep=path)
        ratio = seconds = float("nan")
        if place in _SHOWN or place == self.number:
            ratio, seconds = self._judge(done, place)
        return Served(done.seconds, done.error or 0.0, done.method == "exact", ratio, seconds)

    def _judge(self, done: Retrained, place: int) -> tuple[float, float]:
        """Distance ratio after so many requests, and the seconds of training again with all of them."""
        some = self._asked[:place]
        gone, new = (np.concatenate([getattr(each, what) for each in some]) for what in ("remove", "add"))
        exact = retrain(self._first, gone, new, method="exact")
        return float(np.linalg.norm(done.weights - exact.weights)) / exact.change, exact.seconds

    def _after(self, place: int) -> Path:
        return self._path.with_name(f"{self._path.name}, {place}.journal")


def tell(name: str, served: list[Served]) -> tuple[Table, Bar]:
    rows: list[tuple[Cell, ...]] = []
    for place, one in enumerate(served, start=1):
        if not math.isnan(one.ratio):
            some = served[:place]
            times = one.exact * place / sum(each.seconds for each in some)
            trained = sum(each.trained for each in some)
            rows.append((place, f"{one.ratio:.2g}", f"{one.estimate:.2g}", trained, f"{times:.1f}x"))
    columns = (f"{name}, requests", "ratio", "estimate", "trained in full", "CPU time")
    ratio = served[-1].ratio
    bar = Bar(f"{name}: after {len(served)} requests", f"at most {MOST:g}", f"{ratio:.2g}", ratio <= MOST)
    return Table(columns, tuple(rows)), bar


def run(folder: Path, options: Options) -> Report:
    torch.set_num_threads(1)
    begun, frozen, work = time.process_time(), open_frozen(folder, options), work_in(folder, options)
    data, count = as_features(frozen)
    found = []
    for name in settings_of(count, options):
        sequence = Sequence(work, data, count, name=name, options=options)
        found.append(tell(name, sequence.serve()))
    return Report(
        f"requests in sequence, softmax head on {count:,} features ({frozen.name})",
        tuple(table for table, _ in found),
        tuple(bar for _, bar in found) if options.data and not options.quick else (),
        (
            "each request takes two samples out and one in",
            "CPU time: that of training again after each request, over that of all of them together",
            f"{sequence.results.used}; {time.process_time() - begun:,.0f} CPU s now",
        ),
    )


if __name__ == "__main__":
    begin_with(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    main(__doc__, run, folders={"work": FOLDERS["work"]})
