"""Is a run with `auto` ever slower than one without offloading, all that it has to find out included?

Where offloading cannot pay: a store held by a control group to 0.1, 0.25, 0.5 and 1 core behind a link of 100
Mbit, and a trainer that takes its time over every batch, so that the link is not what is waited for. Needs
root. A measurement is the first epoch of a new process with an empty cache, from the start of iterating an
opened dataset to the last batch. Runs come in pairs, `auto` first in every other one.

The bound is that of 95 % of a bootstrap over the pairs, of the ratio of the medians.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from measuring import Bar, Cell, Options, Report, Table, main
from netns import RATE_MBIT, Ends, demand_root, slow_link
from quota import demand_groups, hold_to
from serving import serve
from trainers import Epoch, Trainer, mean, write_tars

OURS = ("none", "auto")
PAIRS = 10
MOST = 1.05
_RESAMPLES = 10_000
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Case:
    """Cores of the store, None for all; the link; and seconds that the trainer keeps each batch."""

    cores: float | None = None
    rate_mbit: float = RATE_MBIT
    hold: float = 0.0


CASES = {
    **{f"store of {cores:g} cores": Case(cores=cores) for cores in (0.1, 0.25, 0.5, 1.0)},
    "the trainer is the slowest": Case(rate_mbit=2_000, hold=0.4),
}


@dataclass(frozen=True)
class Run:
    """One measurement, and what the planner noted of it."""

    epoch: Epoch
    stretches: Sequence[dict[str, Any]]

    @property
    def seconds(self) -> float:
        return self.epoch.cost.seconds


Runs = dict[str, list[Run]]


@dataclass(frozen=True)
class Setting:
    """A running store, and what a trainer needs to read from it."""

    ends: Ends
    url: str
    case: Case
    folder: Path

    def measure(self, offload: str) -> Run:
        settings = {"offload": offload, "hold": self.case.hold}
        with Trainer(self.url, settings, ends=self.ends, folder=self.folder) as trainer:
            return Run(trainer.epoch(), trainer.stretches())


@contextmanager
def setting_of(case: Case, photos: Path, folder: Path) -> Iterator[Setting]:
    with ExitStack() as stack:
        ends = stack.enter_context(slow_link(rate_mbit=case.rate_mbit))
        held = stack.enter_context(hold_to(case.cores)) if case.cores else ()
        words = (*held, *ends.store.entering)
        store = stack.enter_context(serve(photos, listen=f"{ends.store.address}:7077", within=words))
        yield Setting(ends, store.photos, case, folder)


def measure(name: str, setting: Setting, *, pairs: int) -> Runs:
    found: Runs = {offload: [] for offload in OURS}
    for number in range(pairs):
        for offload in OURS if number % 2 == 0 else reversed(OURS):
            found[offload].append(setting.measure(offload))
        seconds = ", ".join(f"{offload} {found[offload][-1].seconds:.2f} s" for offload in OURS)
        print(f"{name}, pair {number + 1} of {pairs}: {seconds}", file=sys.stderr, flush=True)
    return found


def bound(runs: Runs) -> float:
    """Below which the ratio of medians is, with the confidence asked for."""
    times = np.array([[run.seconds for run in runs[offload]] for offload in OURS])
    picks = np.random.default_rng(0).integers(0, times.shape[1], (_RESAMPLES, times.shape[1]))
    none, auto = np.median(times[:, picks], axis=2)
    return float(np.quantile(auto / none, _CONFIDENCE))


def ratio(runs: Runs) -> float:
    none, auto = (statistics.median(run.seconds for run in runs[offload]) for offload in OURS)
    return auto / none


def time_table(found: dict[str, Runs]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, runs in found.items():
        times = [[run.seconds for run in runs[offload]] for offload in OURS]
        cells = [f"{statistics.median(some):.2f} ({min(some):.2f}..{max(some):.2f})" for some in times]
        pairs = [auto / none for none, auto in zip(*times, strict=True)]
        spread = f"{min(pairs):.3f}..{max(pairs):.3f}"
        rows.append((name, len(pairs), *cells, f"{ratio(runs):.3f}", spread, f"{bound(runs):.3f}"))
    columns = ("case", "pairs", "none, s", "auto, s", "auto / none", "of the pairs", "bound")
    return Table(columns, tuple(rows))


def cost_table(found: dict[str, Runs]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, runs in found.items():
        for offload in OURS:
            epochs = [run.epoch for run in runs[offload]]
            cost = mean([epoch.cost for epoch in epochs])
            spent = (cost.store_cpu, cost.trainer_cpu, cost.store_cpu / cost.seconds)
            offloaded = statistics.mean(epoch.offloaded for epoch in epochs)
            pushed = round(statistics.mean(epoch.counts["pushed_back"] for epoch in epochs))
            cells = (f"{cost.bytes / 1e6:.1f}", *(f"{value:.2f}" for value in spent))
            rows.append((name, offload, *cells, f"{offloaded:.1%}", pushed))
    columns = ("case", "offload", "MB", "store CPU s", "trainer CPU s", "store cores used")
    return Table((*columns, "offloaded", "pushed back"), tuple(rows))


def reasons_of(found: dict[str, Runs]) -> list[str]:
    """What the planner gave most often as its reason at the end of a run."""
    said = []
    for name, runs in found.items():
        reasons = Counter(run.stretches[-1]["reason"] for run in runs["auto"] if run.stretches)
        for reason, count in reasons.most_common(1):
            said.append(f"{name}, at the end of {count} of {len(runs['auto'])} runs: {reason}")
    return said


def bars_of(found: dict[str, Runs]) -> list[Bar]:
    bars = []
    for name, runs in found.items():
        most = bound(runs)
        what = f"{name}: time of auto over none, bound of {_CONFIDENCE:.0%}"
        bars.append(Bar(what, f"at most {MOST:g}", f"{most:.3f}", most <= MOST))
    return bars


def run(folder: Path, options: Options) -> Report:
    photos = write_tars(folder, options, copies=1 if options.quick else 3)
    pairs = 2 if options.quick else PAIRS
    found = {}
    for name, case in CASES.items():
        with setting_of(case, photos, folder) as setting:
            found[name] = measure(name, setting, pairs=pairs)
    images = next(iter(found.values()))["none"][0].epoch.images
    return Report(
        "the first epoch with auto, exploring included, against none, where offloading can hardly pay",
        (time_table(found), cost_table(found)),
        tuple(bars_of(found)),
        (
            f"{images:,} photos, batches of 64; a link of {RATE_MBIT} Mbit where nothing else is said",
            "the trainer that is the slowest keeps every batch for 0.4 s; its link has 2 Gbit",
            *reasons_of(found),
        ),
        raw={
            name: {
                offload: [{**vars(run.epoch.cost), "stretches": run.stretches} for run in some]
                for offload, some in runs.items()
            }
            for name, runs in found.items()
        },
    )


if __name__ == "__main__":
    demand_root()
    demand_groups()
    main(__doc__, run)
