"""How near replay comes to training a head again, and for how much of its CPU time.

A softmax head on 50,000 frozen features, with a full batch and with batches of 1,024; samples that go or
come, from one to a hundredth, and a class that goes. Distances are those to training again over that of
doing nothing. Sweeps: the tolerance, the published settings, the size of the batch; other methods; values of
samples; a network, which is an experiment. With --work a run that was stopped goes on.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from experiments import Key, Results, begin_with
from frozen import CLASSES, open_frozen
from headwater.plan.replay import Adaptive, Policy, Published
from headwater.train.replay.batches import Batches, FullBatch, Minibatches
from headwater.train.replay.features import Features
from headwater.train.replay.journal import Journal
from headwater.train.replay.outcome import Retrained
from headwater.train.replay.retraining import LIMIT, retrain
from headwater.train.replay.valuation import value_samples
from imagesets import FOLDERS, work_in
from measuring import Bar, Cell, Options, Report, Table, main
from replays import L2, MOMENTUM, RATE, Asked, as_features, record, requests

TOLERANCES = {"full batch": 0.01, "batches of 1,024": 0.05}
"""What is asked of a replay in each setting, which is its bar for the distance, too."""
SPEEDS = {"full batch": 3.5, "batches of 1,024": 3.0}
SEEDS = {"full batch": 1, "batches of 1,024": 3}
"""A full batch takes nearly a minute for each; its steps have no noise."""
SHARES = (0.0, 5e-5, 1e-3, 1e-2)
"""Of the samples that go or come; 0 is one sample."""
CLASSES_GONE = (0, 5)
VALUED = 6
BYTES = 2.1
_ANY = 1e9


@dataclass(frozen=True)
class Outcome:
    """One request by one method: distance ratio, CPU time of training again over its own, share of rows.

    `spent` are the CPU seconds of both.
    """

    ratio: float
    speed: float
    work: float
    error: float
    spent: float

    @property
    def cpu(self) -> float:
        return self.spent

    def __str__(self) -> str:
        near = f"ratio {self.ratio:.2g} (estimate {self.error:.2g})"
        return f"{near}, {self.work:.1%} of the rows, {self.speed:.2f}x"


@dataclass(frozen=True, eq=False)
class Judge:
    """Training again for each request, by which everything else is judged."""

    journal: Journal
    asked: Asked

    @cached_property
    def exact(self) -> Retrained:
        return self.ask(method="exact")

    def ask(self, method: str = "replay", policy: Policy | None = None) -> Retrained:
        limit = _ANY if policy is not None else LIMIT
        return retrain(
            self.journal, self.asked.remove, self.asked.add, method=method, policy=policy, limit=limit
        )

    def replay(self, policy: Policy) -> Outcome:
        return self.judge(self.ask(policy=policy))

    def judge(self, done: Retrained) -> Outcome:
        # Both from how the weights moved, so that one sample of many is not lost in their rounding.
        apart = float(np.linalg.norm(done.moved - self.exact.moved))
        return Outcome(
            apart / self.exact.change,
            self.exact.seconds / done.seconds,
            done.work,
            done.error or float("nan"),
            self.exact.seconds + done.seconds,
        )


@dataclass(frozen=True, eq=False)
class Kept:
    """Outcomes that were found before are not looked for again."""

    results: Results[Outcome]
    data: str

    def get(self, setting: str, seed: int, find: Callable[[], Outcome]) -> Outcome:
        key = Key(self.data, setting, seed)
        if key not in self.results:
            self.results.put(key, find())
            print(f"{setting}, seed {seed}: {self.results[key]}", file=sys.stderr, flush=True)
        return self.results[key]

    def all(self, name: str, finds: Mapping[str, Callable[[], Outcome]]) -> list[tuple[str, Outcome]]:
        """Rows of a table, each with how it is found."""
        return [(what, self.get(f"{name}, {what}", 0, find)) for what, find in finds.items()]


Found = dict[tuple[str, int], list[Outcome]]


def settings_of(count: int, options: Options) -> dict[str, Batches]:
    full, epochs = (60, 3) if options.quick else (500, 20)
    return {
        "full batch": FullBatch(count, full),
        "batches of 1,024": Minibatches(count, 1024, epochs, seed=17),
    }


def sizes_of(count: int) -> list[int]:
    return sorted({max(1, round(share * count)) for share in SHARES})


def sweep_sizes(journal: Journal, data: Features, count: int, name: str, kept: Kept, seeds: int) -> Found:
    """Every request with some seeds, replayed at the tolerance of the setting."""
    found: Found = {}
    for seed in range(seeds):
        for asked in requests(data, count, sizes_of(count), seed):
            judge, policy = Judge(journal, asked), Adaptive(TOLERANCES[name])
            outcome = kept.get(f"{name}, {asked.what} {asked.size}", seed, partial(judge.replay, policy))
            found.setdefault((asked.what, asked.size), []).append(outcome)
    return found


def sweep_methods(journal: Journal, data: Features, count: int) -> dict[str, Callable[[], Outcome]]:
    """Tolerances, the published settings and the other methods, for one of a hundred samples that goes."""
    judge = Judge(journal, next(requests(data, count, [max(1, count // 100)], 5)))
    policies: dict[str, Policy] = {f"tolerance {each:g}": Adaptive(each) for each in (0.1, 0.02, 0.005)}
    policies |= {f"published, period {each}, burn-in 10": Published(each, 10) for each in (5, 10, 20)}
    found = {what: partial(judge.replay, policy) for what, policy in policies.items()}
    return found | {each: partial(_judge_method, judge, each) for each in ("exact", "warm", "influence")}


def sweep_classes(
    journal: Journal, data: Features, count: int, name: str
) -> dict[str, Callable[[], Outcome]]:
    """All samples of one class go: the same share as a tenth by chance, and nothing like it."""
    policy, nobody = Adaptive(TOLERANCES[name]), np.empty(0, np.int64)
    found: dict[str, Callable[[], Outcome]] = {}
    for each in CLASSES_GONE:
        ids = data.ids[:count][data.targets[:count] == each]
        judge = Judge(journal, Asked("delete", len(ids), ids, nobody))
        found[f"class {each}"] = partial(judge.replay, policy)
    return found


def sweep_batches(
    folder: Path, data: Features, count: int, options: Options
) -> dict[str, Callable[[], Outcome]]:
    """One of a thousand samples goes from runs with batches of other sizes."""
    asked = next(requests(data, count, [max(1, count // 1000)], 7))

    def find(size: int, epochs: int) -> Outcome:
        path = folder / f"batch-{size}{'-quick' if options.quick else ''}.journal"
        journal = record(path, data, count, Minibatches(count, size, epochs, seed=17))
        return Judge(journal, asked).replay(Adaptive(0.05))

    runs = {
        size: 1 if options.quick else max(2, min(20, 20 * size // 1024)) for size in (128, 512, 2048, 8192)
    }
    return {
        f"batches of {size:,}, {epochs} epochs": partial(find, size, epochs) for size, epochs in runs.items()
    }


def value_some(journal: Journal, data: Features, count: int) -> Table:
    """Leave-one-out values of some samples by replay, and by training again without each."""
    rng = np.random.default_rng(23)
    ids, judges = rng.choice(data.ids[:count], VALUED, replace=False), data.pick(np.arange(count, len(data)))
    begun = time.process_time()
    quick, seconds = value_samples(journal, ids, judge=judges), time.process_time() - begun
    everyone = slice(0, len(judges))
    before = journal.objective.gradient(journal.weights, judges.parts(everyone)) / len(judges)
    rows: list[tuple[Cell, ...]] = []
    for number, value in zip(ids.tolist(), quick.values, strict=True):
        moved = retrain(journal, [number], method="exact").moved
        bent = journal.objective.curve(journal.weights, moved, judges.parts(everyone)) / len(judges)
        truth = float(np.vdot(before, moved)) + 0.5 * float(np.vdot(bent, moved))
        rows.append((len(rows) + 1, f"{value:.3g}", f"{truth:.3g}", f"{abs(value - truth) / abs(truth):.1%}"))
    name = f"leave one out, {seconds / VALUED:.2g} CPU s each"
    return Table((name, "value by replay", "by training again", "apart"), tuple(rows))


def try_network(folder: Path, data: Features, options: Options) -> dict[str, Callable[[], Outcome]]:
    """A hidden layer on some of the features: not convex."""
    count = 2_000 if options.quick else 8_000
    some = data.pick(np.arange(count))
    asked = next(requests(some, count, [count // 100], 9))

    runs: dict[str, Batches] = {
        "full batch": FullBatch(count, 40 if options.quick else 200),
        "batches of 1,024": Minibatches(count, 1024, 5 if options.quick else 25),
    }

    @cache
    def judge(name: str) -> Judge:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(some.values.shape[1], 64), nn.Tanh(), nn.Linear(64, CLASSES))
        path = folder / f"network-{name.split()[0]}"
        _train(net, path, some, runs[name])
        return Judge(Journal(path, some, model=net), asked)

    def find(name: str, policy: Policy) -> Outcome:
        return judge(name).replay(policy)

    policies: dict[str, Policy] = {
        "tolerance 0.05": Adaptive(0.05),
        "published, period 5, burn-in 10": Published(5, 10),
    }
    return {
        f"{name}, {what}": partial(find, name, policy) for name in runs for what, policy in policies.items()
    }


def _judge_method(judge: Judge, method: str) -> Outcome:
    return judge.judge(judge.exact if method == "exact" else judge.ask(method))


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


def tell_worst(name: str, found: Found) -> str:
    """Of all requests and seeds the one that ended furthest away; no bar asks for it."""
    (what, size), ratio = max(
        ((request, each.ratio) for request, outcomes in found.items() for each in outcomes),
        key=lambda one: one[1],
    )
    return f"{name}: worst single distance ratio {ratio:.2g} ({what}, {size})"


def bars_of(name: str, found: Found, journal: Journal) -> Iterator[Bar]:
    """By the worst of all requests, each the median of its seeds."""
    ratio = max(statistics.median(each.ratio for each in outcomes) for outcomes in found.values())
    speed = min(statistics.median(each.speed for each in outcomes) for outcomes in found.values())
    used, most, least = journal.bytes_per_weight_and_step, TOLERANCES[name], SPEEDS[name]
    yield Bar(f"{name}: worst median distance ratio", f"at most {most:g}", f"{ratio:.2g}", ratio <= most)
    yield Bar(f"{name}: least gain in CPU time", f"at least {least:g}", f"{speed:.1f}", speed >= least)
    yield Bar(f"{name}: bytes a weight and step", f"at most {BYTES}", f"{used:.3f}", used <= BYTES)


def run(folder: Path, options: Options) -> Report:
    torch.set_num_threads(1)
    begun, frozen, work = time.process_time(), open_frozen(folder, options), work_in(folder, options)
    data, count = as_features(frozen)
    kind = f"{frozen.name}{', quick' if options.quick else ''}"
    kept = Kept(Results(work / "replay.jsonl", Outcome), kind)
    tables, bars, worst, raw = [], [], [], {}
    for name, batches in settings_of(count, options).items():
        journal = record(work / f"replay, {kind}, {name.split()[0]}.journal", data, count, batches)
        found = sweep_sizes(journal, data, count, name, kept, 1 if options.quick else SEEDS[name])
        tables.append(size_table(name, found))
        rows = kept.all(f"{name}, 1 % go", sweep_methods(journal, data, count))
        tables.append(method_table(f"{name}, 1 % go", rows))
        rows = kept.all(f"{name}, a class goes", sweep_classes(journal, data, count, name))
        tables.append(method_table(f"{name}, a class goes", rows))
        bars += bars_of(name, found, journal)
        worst.append(tell_worst(name, found))
        raw[name] = {f"{what} {size}": [vars(each) for each in some] for (what, size), some in found.items()}
    tables.append(value_some(journal, data, count))
    other = kept.all("0.1 % go", sweep_batches(work, data, count, options))
    tables.append(method_table("0.1 % go, tolerance 0.05", other))
    nets = kept.all("network", try_network(folder, data, options))
    tables.append(method_table("network (experimental), 1 % go", nets))
    return Report(
        f"replay of a softmax head on {count:,} rows of {data.values.shape[1]} features ({frozen.name})",
        tuple(tables),
        # Clouds and few steps show that it runs, and no more.
        tuple(bars) if options.data and not options.quick else (),
        (
            f"SGD with rate {RATE:g}, momentum {MOMENTUM:g}, L2 {L2:g}; {CLASSES} classes; one core",
            "a ratio of 1 is doing nothing",
            *worst,
            f"{kept.results.used}; {time.process_time() - begun:,.0f} CPU s now",
        ),
        raw=raw,
    )


if __name__ == "__main__":
    begin_with(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    main(__doc__, run, folders={"work": FOLDERS["work"]})
