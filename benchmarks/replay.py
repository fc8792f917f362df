"""How near replay comes to training a head again, and for how much of its CPU time.

A softmax head on 50,000 frozen features, with a full batch and with batches of 1,024; samples that go or
come, from one to a hundredth. Distances are those to training again over that of doing nothing. Sweeps: the
tolerance, the published settings, the size of the batch; other methods; a network, which is an experiment.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from experiments import begin_with
from frozen import CLASSES, open_frozen
from headwater.plan.replay import Adaptive, Policy, Published
from headwater.train.replay.batches import Batches, FullBatch, Minibatches
from headwater.train.replay.features import Features
from headwater.train.replay.journal import Journal
from headwater.train.replay.outcome import Retrained
from headwater.train.replay.retraining import retrain
from imagesets import FOLDERS
from measuring import Bar, Cell, Options, Report, Table, main
from replays import L2, MOMENTUM, RATE, Asked, as_features, record, requests

TOLERANCES = {"full batch": 0.01, "batches of 1,024": 0.05}
"""What is asked of a replay in each setting, which is its bar for the distance, too."""
SPEEDS = {"full batch": 3.5, "batches of 1,024": 3.0}
SHARES = (0.0, 5e-5, 1e-4, 1e-3, 1e-2)
"""Of the samples that go or come; 0 is one sample."""
BYTES = 2.1
_ANY = 1e9


@dataclass(frozen=True)
class Outcome:
    """One request by one method: distance ratio, CPU time of training again over its own, share of rows."""

    ratio: float
    speed: float
    work: float
    error: float


@dataclass(frozen=True, eq=False)
class Judge:
    """Training again for each request, by which everything else is judged."""

    journal: Journal
    asked: Asked
    exact: Retrained

    @classmethod
    def of(cls, journal: Journal, asked: Asked) -> Judge:
        return cls(journal, asked, retrain(journal, asked.remove, asked.add, method="exact"))

    def replay(self, policy: Policy) -> Outcome:
        return self.judge(retrain(self.journal, self.asked.remove, self.asked.add, policy=policy, limit=_ANY))

    def other(self, method: str) -> Outcome:
        return self.judge(retrain(self.journal, self.asked.remove, self.asked.add, method=method))

    def judge(self, done: Retrained) -> Outcome:
        # Both from how the weights moved, so that one sample of many is not lost in their rounding.
        apart = float(np.linalg.norm(done.moved - self.exact.moved))
        return Outcome(
            apart / self.exact.change,
            self.exact.seconds / done.seconds,
            done.work,
            done.error or float("nan"),
        )


Found = dict[tuple[str, int], list[Outcome]]


def settings_of(count: int, options: Options) -> dict[str, Batches]:
    full, epochs = (60, 3) if options.quick else (500, 20)
    return {
        "full batch": FullBatch(count, full),
        "batches of 1,024": Minibatches(count, 1024, epochs, seed=17),
    }


def sizes_of(count: int) -> list[int]:
    return sorted({max(1, round(share * count)) for share in SHARES})


def sweep_sizes(journal: Journal, data: Features, count: int, name: str, seeds: int) -> Found:
    """Every request with some seeds, replayed at the tolerance of the setting."""
    found: Found = {}
    for seed in range(seeds):
        for asked in requests(data, count, sizes_of(count), seed):
            judge = Judge.of(journal, asked)
            outcome = judge.replay(Adaptive(TOLERANCES[name]))
            found.setdefault((asked.what, asked.size), []).append(outcome)
            _tell(f"{name}, {asked.what} {asked.size}: {outcome}")
    return found


def sweep_methods(journal: Journal, data: Features, count: int) -> Iterator[tuple[str, Outcome]]:
    """Tolerances, the published settings and the other methods, for one of a hundred samples that goes."""
    asked = next(requests(data, count, [max(1, count // 100)], 5))
    judge = Judge.of(journal, asked)
    for tolerance in (0.1, 0.05, 0.02, 0.01, 0.005):
        yield f"tolerance {tolerance:g}", judge.replay(Adaptive(tolerance))
    for period in (1, 2, 5, 10, 20):
        yield f"published, period {period}, burn-in 10", judge.replay(Published(period, 10))
    for method in ("warm", "influence"):
        yield method, judge.other(method)


def sweep_batches(
    folder: Path, data: Features, count: int, options: Options
) -> Iterator[tuple[str, Outcome]]:
    """One of a thousand samples goes from runs with batches of other sizes."""
    for size in (128, 512, 2048, 8192):
        epochs = 1 if options.quick else max(2, min(20, 20 * size // 1024))
        journal = record(folder / f"batch-{size}", data, count, Minibatches(count, size, epochs, seed=17))
        asked = next(requests(data, count, [max(1, count // 1000)], 7))
        yield f"batches of {size:,}, {epochs} epochs", Judge.of(journal, asked).replay(Adaptive(0.05))


def try_network(folder: Path, data: Features, options: Options) -> Iterator[tuple[str, Outcome]]:
    """A hidden layer on some of the features: not convex."""
    count = 2_000 if options.quick else 8_000
    some = data.pick(np.arange(count))
    for name, batches in {
        "full batch": FullBatch(count, 40 if options.quick else 200),
        "batches of 1,024": Minibatches(count, 1024, 5 if options.quick else 25),
    }.items():
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(some.values.shape[1], 64), nn.Tanh(), nn.Linear(64, CLASSES))
        path = folder / f"network-{name.split()[0]}"
        _train(net, path, some, batches)
        asked = next(requests(some, count, [count // 100], 9))
        judge = Judge.of(Journal(path, some, model=net), asked)
        yield f"{name}, tolerance 0.05", judge.replay(Adaptive(0.05))
        yield f"{name}, published, period 5, burn-in 10", judge.replay(Published(5, 10))


def _train(net: nn.Module, path: Path, data: Features, batches: Batches) -> None:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.3, weight_decay=L2)
    with Journal.record(path, net, optimiser, data=data, batches=batches) as recording:
        for rows in recording:
            inputs, targets = data.take(rows)
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(inputs), targets).backward()
            optimiser.step()


def size_table(name: str, found: Found) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for (what, size), outcomes in found.items():
        ratios, speeds = [each.ratio for each in outcomes], [each.speed for each in outcomes]
        rows.append(
            (
                what,
                size,
                f"{statistics.median(ratios):.2g}",
                f"{min(ratios):.2g}..{max(ratios):.2g}",
                f"{statistics.median(each.error for each in outcomes):.2g}",
                f"{statistics.median(each.work for each in outcomes):.1%}",
                f"{statistics.median(speeds):.1f}x",
                f"{min(speeds):.1f}..{max(speeds):.1f}",
            )
        )
    columns = ("samples", "median ratio", "min..max", "estimate", "rows", "CPU time", "min..max")
    return Table((name, *columns), tuple(rows))


def method_table(name: str, found: list[tuple[str, Outcome]]) -> Table:
    rows = tuple(
        (what, f"{each.ratio:.2g}", f"{each.error:.2g}", f"{each.work:.1%}", f"{each.speed:.2f}x")
        for what, each in found
    )
    return Table((name, "ratio", "estimate", "rows", "CPU time"), rows)


def bars_of(name: str, found: Found, journal: Journal) -> Iterator[Bar]:
    """By the worst of all requests, each the median of its seeds."""
    ratio = max(statistics.median(each.ratio for each in outcomes) for outcomes in found.values())
    speed = min(statistics.median(each.speed for each in outcomes) for outcomes in found.values())
    used, most, least = journal.bytes_per_weight_and_step, TOLERANCES[name], SPEEDS[name]
    yield Bar(f"{name}: worst distance ratio", f"at most {most:g}", f"{ratio:.2g}", ratio <= most)
    yield Bar(f"{name}: least gain in CPU time", f"at least {least:g}", f"{speed:.1f}", speed >= least)
    yield Bar(f"{name}: bytes a weight and step", f"at most {BYTES}", f"{used:.3f}", used <= BYTES)


def run(folder: Path, options: Options) -> Report:
    torch.set_num_threads(1)
    begun, frozen = time.process_time(), open_frozen(folder, options)
    data, count = as_features(frozen)
    tables, bars, raw = [], [], {}
    for name, batches in settings_of(count, options).items():
        journal = record(folder / name.split()[0], data, count, batches)
        found = sweep_sizes(journal, data, count, name, 1 if options.quick else 3)
        tables.append(size_table(name, found))
        tables.append(method_table(f"{name}, 1 % go", list(sweep_methods(journal, data, count))))
        bars += bars_of(name, found, journal)
        raw[name] = {f"{what} {size}": [vars(each) for each in some] for (what, size), some in found.items()}
    tables.append(method_table("0.1 % go, tolerance 0.05", list(sweep_batches(folder, data, count, options))))
    tables.append(method_table("network (experimental), 1 % go", list(try_network(folder, data, options))))
    return Report(
        f"replay of a softmax head on {count:,} rows of {data.values.shape[1]} features ({frozen.name})",
        tuple(tables),
        # Clouds and few steps show that it runs, and no more.
        tuple(bars) if options.data and not options.quick else (),
        (
            f"SGD with rate {RATE:g}, momentum {MOMENTUM:g}, L2 {L2:g}; {CLASSES} classes; one core",
            "a ratio of 1 is doing nothing",
            f"{time.process_time() - begun:,.0f} CPU s in all",
        ),
        raw=raw,
    )


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    begin_with(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    main(__doc__, run, folders={"work": FOLDERS["work"]})
