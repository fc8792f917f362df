"""Plans for memory against the best of all plans on small graphs, and against on-line rules on real traces.

All are played on the same virtual clock. LRU swaps, DTR's rule recomputes and swaps what it cannot; both wait
for each transfer, as on-line rules do. Who recomputes is charged with noting how tensors are made. The rate
of transfers on traces is made up, so that both ways are worth considering.
"""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import headwater as hw
from evicting import Trace, least_recently_used, rematerialise
from headwater.plan.memory import (
    WAYS,
    AccessRecord,
    Action,
    Rates,
    TensorRecord,
    first_needs,
    make_plan,
    place_triggers,
    recompute_seconds,
    simulate,
)
from measuring import Bar, Cell, Options, Report, Table, main
from memory_nets import NETS, make, step

TENSORS = 7
SHARES = (0.7, 0.5, 0.3)


def random_record(rng: np.random.Generator) -> AccessRecord:
    """A chain with side inputs, some of which cannot be recomputed."""
    gaps = rng.exponential(0.2, 2 * TENSORS)
    tensors = []
    for place in range(TENSORS):
        made = place > 0 and rng.random() < 0.7
        parents = tuple({place - 1, int(rng.integers(0, place))}) if made else None
        size, seconds = int(rng.integers(50, 400)), float(rng.exponential(0.2))
        tensors.append(TensorRecord(size, (place,), (2 * TENSORS - 1 - place,), parents, seconds))
    return AccessRecord(tuple(tensors), tuple(float(at) for at in np.cumsum(gaps)))


def best_of_all(record: AccessRecord, budget: int, rates: Rates) -> float | None:
    found: list[float] = []
    for ways in itertools.product(WAYS, repeat=TENSORS):
        actions: dict[int, Action] = dict(enumerate(ways))
        again = {place for place, way in actions.items() if way == "recompute"}
        if any(recompute_seconds(record, place, again) is None for place in again):
            continue
        triggers = place_triggers(record, first_needs(record, actions), rates)
        outcome = simulate(record, actions, triggers, budget=budget, rates=rates)
        if outcome.peak <= budget:
            found.append(outcome.overhead_seconds)
    return min(found, default=None)


@dataclass
class Small:
    """Small graphs: an iteration by our plan over one by the best; the same of what both add; misfits."""

    iterations: list[float] = field(default_factory=list)
    overheads: list[float] = field(default_factory=list)
    missed: int = 0


def against_the_best(count: int) -> Small:
    found = Small()
    for seed in range(count):
        rng = np.random.default_rng(seed)
        record, taken = random_record(rng), float(rng.choice([0.0, 0.5]))
        budget = int(record.peak() * rng.uniform(0.45, 0.8))
        rates = Rates(float(rng.uniform(300, 1500)), float(rng.uniform(300, 1500)), taken)
        best, plan = best_of_all(record, budget, rates), make_plan(record, budget=budget, rates=rates)
        if best is not None:
            found.missed += not plan.fits
            length = record.times[-1]
            found.iterations.append((length + plan.overhead_seconds) / (length + best))
            found.overheads.append(max(plan.overhead_seconds, 1e-9) / max(best, 1e-9))
    return found


def recorded(name: str, size: int) -> AccessRecord:
    """The accesses of a real iteration."""
    net = make(name)
    with hw.memory_budget("1TiB", device="cpu") as budget:
        for _ in range(3):
            step(net, name, size)
        return budget.record()


def on_traces(names: list[str], size: int) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for name in names:
        record = recorded(name, size)
        length = record.times[-1]
        # As fast as this iteration computes what it keeps: both ways are worth considering.
        rate = 4 * record.peak() / length
        rates = Rates(rate, 2 * rate, 0.5)
        for share in SHARES:
            budget = int(record.peak() * share)
            begin = time.perf_counter()
            plan = make_plan(record, budget=budget, rates=rates)
            took = time.perf_counter() - begin
            lru = Trace(record, budget, rates, least_recently_used, recompute=False).run()
            dtr = Trace(record, budget, rates, rematerialise, recompute=True).run()
            ours = plan.overhead_seconds if plan.fits else None
            rows.append((name, share, *(_share(found, length) for found in (ours, lru, dtr)), f"{took:.2f}"))
    return rows


def _share(overhead: float | None, length: float) -> str:
    return "does not fit" if overhead is None else f"{overhead / length:.3f}"


def run(folder: Path, options: Options) -> Report:
    small = against_the_best(4 if options.quick else 100)
    names = list(NETS)[: 1 if options.quick else None]
    rows = on_traces(names, 4 if options.quick else 16)
    behind, count = sum(_is_behind(row) for row in rows), len(small.iterations)
    mean, worst = statistics.mean(small.iterations), max(small.iterations)
    near = sum(ratio <= 1.05 for ratio in small.overheads)
    bars = (
        Bar(
            "iteration by our plan / by the best, mean",
            "within 5 %",
            f"{mean:.3f} (worst {worst:.3f})",
            mean <= 1.05,
        ),
        Bar(
            "graphs on which what the plan adds is within 5 % of the least",
            "95 %",
            f"{near} of {count} (worst {max(small.overheads):.2f}x)",
            near >= 0.95 * count,
        ),
        Bar("graphs in which a plan exists and ours does not fit", "0", str(small.missed), small.missed == 0),
        Bar("traces on which ours is not ahead of both", "0", f"{behind} of {len(rows)}", behind == 0),
    )
    columns = ("trace", "budget / peak", "ours", "LRU", "DTR's rule", "planning s")
    notes = (f"{count} graphs of {TENSORS} tensors; figures of traces are overhead over the iteration.",)
    return Report("How good are plans for memory?", (Table(columns, tuple(rows)),), bars, notes)


def _is_behind(row: tuple[Cell, ...]) -> bool:
    """Ours must fit, and be no dearer than any that does."""
    if row[2] == "does not fit":
        return any(other != "does not fit" for other in row[3:5])
    return any(other != "does not fit" and float(other) < float(row[2]) for other in row[3:5])


if __name__ == "__main__":
    main(__doc__, run)
