"""What a hundred requests in sequence come to, each on the journal that the one before it wrote.

Every request takes some samples out and lets some join. In the end: distance to training again with all of
it, over that of doing nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from experiments import begin_with
from frozen import open_frozen
from headwater.train.replay.batches import Batches, FullBatch, Minibatches
from headwater.train.replay.features import Features
from headwater.train.replay.journal import Journal
from headwater.train.replay.retraining import retrain
from imagesets import FOLDERS
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


def follow(folder: Path, data: Features, count: int, name: str, options: Options) -> tuple[Table, Bar]:
    number = 5 if options.quick else 100
    first = record(folder / "first", data, count, settings_of(count, options)[name])
    journal, seconds, rows, trained = first, 0.0, [], 0
    gone, new = np.empty(0, np.int64), np.empty(0, np.int64)
    ratio = float("nan")
    for place, asked in enumerate(one_by_one(data, count, number), start=1):
        done = retrain(journal, asked.remove, asked.add, tolerance=TOLERANCES[name], keep=folder / "next")
        journal = Journal(folder / "next", data)
        gone, new = np.concatenate([gone, asked.remove]), np.concatenate([new, asked.add])
        seconds, trained = seconds + done.seconds, trained + (done.method == "exact")
        if place in _SHOWN or place == number:
            exact = retrain(first, gone, new, method="exact")
            ratio = float(np.linalg.norm(done.weights - exact.weights)) / exact.change
            mean = f"{exact.seconds * place / seconds:.1f}x"
            rows.append((place, f"{ratio:.2g}", f"{done.error or 0.0:.2g}", trained, mean))
            print(f"{name}: {rows[-1]}", file=sys.stderr, flush=True)
    columns = (f"{name}, requests", "ratio", "estimate", "trained in full", "CPU time")
    cells: tuple[tuple[Cell, ...], ...] = tuple(rows)
    bar = Bar(f"{name}: after {number} requests", f"at most {MOST:g}", f"{ratio:.2g}", ratio <= MOST)
    for path in (folder / "first", folder / "next"):
        path.unlink()
    return Table(columns, cells), bar


def run(folder: Path, options: Options) -> Report:
    torch.set_num_threads(1)
    begun, frozen = time.process_time(), open_frozen(folder, options)
    data, count = as_features(frozen)
    found = [follow(folder, data, count, name, options) for name in settings_of(count, options)]
    return Report(
        f"requests in sequence, softmax head on {count:,} features ({frozen.name})",
        tuple(table for table, _ in found),
        tuple(bar for _, bar in found) if options.data and not options.quick else (),
        (
            "each request takes two samples out and one in",
            "CPU time: that of training again after each request, over that of all of them together",
            f"{time.process_time() - begun:,.0f} CPU s in all",
        ),
    )


if __name__ == "__main__":
    begin_with(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    main(__doc__, run, folders={"work": FOLDERS["work"]})
