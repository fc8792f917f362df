"""Images per second against batch size within one budget of memory: ours, plain training, and other ways.

The budget is what plain training holds for backward at its own batch size, which is then its largest by
definition; ours, and the others, train on multiples of it. Plain training at these sizes has no limit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import headwater as hw
from measuring import Bar, Cell, Flag, Options, Ratio, Report, Table, at_least, interleave, main
from memory_nets import make, step
from memory_ways import RIVALS

NETS = ("ResNet-50-like", "transformer")
MULTIPLES = (1, 2, 3, 4)
SETTLING = 10
"""Iterations after which fetches should not be late any more."""
FLAGS = {
    "batch": Flag(24, "samples of plain training's batch"),
    "steps": Flag(3, "that are timed in a round"),
}


def plain_peak(name: str, size: int) -> int:
    """Bytes that plain training holds for backward."""
    net = make(name)
    with hw.memory_budget("1TiB", device="cpu") as budget:
        for _ in range(3):
            step(net, name, size)
        return budget.report().peak_before


def rival_rate(name: str, way: str, size: int, steps: int) -> float:
    with RIVALS[way](make(name)) as net:
        step(net, name, size)
        return _rate(lambda: step(net, name, size), size, steps)


def our_rate(name: str, size: int, steps: int, budget: int) -> float:
    """After the iterations in which it measures, plans and learns."""
    net = make(name)
    with hw.memory_budget(budget, device="cpu"):
        for _ in range(SETTLING):
            step(net, name, size)
        return _rate(lambda: step(net, name, size), size, steps)


def _rate(call: Callable[[], None], size: int, steps: int) -> float:
    begin = time.perf_counter()
    for _ in range(steps):
        call()
    return steps * size / (time.perf_counter() - begin)


def settled(name: str, size: int, budget: int) -> tuple[float, float]:
    """The share of late fetches after some iterations, and the highest peak of all over the budget."""
    net, peaks = make(name), []
    with hw.memory_budget(budget, device="cpu") as context:
        for _ in range(SETTLING):
            step(net, name, size)
            peaks.append(context.report().peak)
        before = context.report()
        for _ in range(SETTLING):
            step(net, name, size)
            peaks.append(context.report().peak)
        after = context.report()
    fetches = after.fetches_in_all - before.fetches_in_all
    late = after.late_fetches_in_all - before.late_fetches_in_all
    return late / max(fetches, 1), max(peaks) / budget


def run(folder: Path, options: Options) -> Report:
    base, steps = int(options.numbers["batch"]), int(options.numbers["steps"])
    base, names = (4, NETS[:1]) if options.quick else (base, NETS)
    rows: list[tuple[Cell, ...]] = []
    bars: list[Bar] = []
    for name in names:
        budget = plain_peak(name, base)
        contenders: dict[str, Callable[[], float]] = {}
        for multiple in MULTIPLES[: 2 if options.quick else None]:
            for way in RIVALS:
                contenders[f"{way} x{multiple}"] = partial(rival_rate, name, way, multiple * base, steps)
            contenders[f"ours x{multiple}"] = partial(our_rate, name, multiple * base, steps, budget)
        rates = interleave(contenders, rounds=2 if options.quick else 5)
        rows += [(name, way, round(statistics.median(found), 1)) for way, found in rates.items()]
        bars += _bars(name, rates, *settled(name, 2 * base, budget))
    columns = ("network", "way x multiple of plain's batch", "median samples/s")
    return Report(
        "What do larger batches in the same memory cost?", (Table(columns, tuple(rows)),), tuple(bars)
    )


def _bars(name: str, rates: dict[str, list[float]], late: float, peak: float) -> list[Bar]:
    def ratio(way: str, against: str) -> Ratio:
        pairs = zip(rates[way], rates[against], strict=True)
        return Ratio(f"{name}, {way}", against, tuple(one / other for one, other in pairs))

    return [
        at_least(ratio("ours x2", "plain x1"), 0.8),
        Bar(f"{name}: late fetches after {SETTLING} iterations", "under 1 %", f"{late:.1%}", late < 0.01),
        Bar(f"{name}: highest tracked peak / budget", "at most 1", f"{peak:.3f}", peak <= 1),
    ]


if __name__ == "__main__":
    main(__doc__, run, flags=FLAGS)
