"""What a memory budget costs that is large enough for everything: tracking alone, with nothing to do.

That is a few hundredths at most, so it is told by the CPU seconds of many single steps, on one thread:
threads that wait for each other spend CPU as well.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import headwater as hw
from measuring import Cell, Flag, Options, Ratio, Report, Table, at_least, main
from memory_nets import SMALL, make, step

NETS = ("ResNet-50-like", "transformer")
SETTLING = 10
"""Iterations in which it measures and plans; after them it only looks on."""
STEPS = 12
LEAST = 0.98
FLAGS = {"batch": Flag(24, "samples of a batch"), "pairs": Flag(12, "of plain training and ours")}


def measure(name: str, size: int, pairs: int) -> list[tuple[float, float]]:
    """CPU seconds of a step of plain training, and of one of ours, pair by pair."""
    net, found = make(name), []
    for _ in range(pairs):
        plain = _median_step(lambda: step(net, name, size))
        with hw.memory_budget("1TiB", device="cpu"):
            for _ in range(SETTLING):
                step(net, name, size)
            found.append((plain, _median_step(lambda: step(net, name, size))))
    return found


def _median_step(call: Callable[[], None]) -> float:
    seconds = []
    for _ in range(STEPS):
        begin = time.process_time()
        call()
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds)


def run(folder: Path, options: Options) -> Report:
    torch.set_num_threads(1)
    size, pairs = int(options.numbers["batch"]), 2 if options.quick else int(options.numbers["pairs"])
    rows: list[tuple[Cell, ...]] = []
    bars = []
    for name in NETS[:1] if options.quick else (*NETS, SMALL):
        found = measure(name, 4 if options.quick else size, pairs)
        plain, ours = (statistics.median(one) for one in zip(*found, strict=True))
        rows.append((name, f"{1e3 * plain:.1f}", f"{1e3 * ours:.1f}", f"{plain / ours:.3f}"))
        ratios = tuple(plain / ours for plain, ours in found)
        if name in NETS:
            bars.append(at_least(Ratio(f"{name}, plain", "with a budget, CPU s", ratios), LEAST))
    columns = ("network", "plain, CPU ms a step", "with a budget", "plain over that")
    return Report(
        "What does a memory budget cost that is large enough?",
        (Table(columns, tuple(rows)),),
        tuple(bars),
        (
            f"medians of {pairs} pairs of {STEPS} steps; one thread",
            f"{SMALL}, forty of 64 numbers, have no bar: there calls take longer than computing",
        ),
    )


if __name__ == "__main__":
    main(__doc__, run, flags=FLAGS)
