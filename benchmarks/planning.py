"""What does it cost to plan 1e4, 1e6 and 1e7 samples with 8 options each, by each policy?

Made-up photos: raw files, cuts, lossless regions and codecs, with costs such as were measured. Seconds are
CPU seconds, the best of several; bytes are the most that planning holds at once, without the options that it
is given. `hull` is planned twice: link-bound with few store cores, and link and trainer CPU binding together.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.plan.offload import Offload, OffloadPlan, Options, Rates, make_plan
from headwater.plan.offload.fixed import Fixed
from headwater.plan.offload.workload import Policy
from measuring import Bar, Cell, Report, Table, best, main, peak
from measuring import Options as Told

SIZES = (10_000, 1_000_000, 10_000_000)
TIMES = 3
FLAT = 3.0
"""How much dearer a sample may be at the largest size: the caches of a CPU end somewhere."""
SECONDS = 5.0
"""For a million samples: what "a few seconds" is taken to mean."""
LINK_BOUND = Rates(link=12.5e6, store_cores=0.5, trainer_cores=8)
BOTH_BOUND = Rates(link=12.5e6, store_cores=4, trainer_cores=0.6)
CASES: dict[str, tuple[str | Policy, Rates]] = {
    "none": ("none", LINK_BOUND),
    "all": ("all", LINK_BOUND),
    "fixed": (Fixed(Offload(3)), LINK_BOUND),
    "throughput": ("throughput", LINK_BOUND),
    "efficiency": ("efficiency", LINK_BOUND),
    "hull": ("hull", LINK_BOUND),
    "hull, link and trainer CPU": ("hull", BOTH_BOUND),
}
WAYS = (
    Offload(0),
    Offload(1),
    Offload(2),
    Offload(3),
    Offload(1, "region"),
    Offload(1, "region-optimised"),
    Offload(3, "jxl1"),
    Offload(3, "jxl3"),
)


def make_options(count: int) -> Options:
    """Photos of log-normal size; decoding costs 10 ns a pixel. Made by the block, to need no more memory."""
    columns = [np.empty((count, len(WAYS)), np.float32) for _ in range(3)]
    for start in range(0, count, 1 << 18):
        rows = slice(start, min(start + (1 << 18), count))
        for column, values in zip(columns, make_rows(rows.stop - start, seed=start), strict=True):
            column[rows] = values.T
    return Options(WAYS, *columns)


def make_rows(count: int, *, seed: int) -> tuple[NDArray[np.float64], ...]:
    """Bytes, store seconds and trainer seconds of some photos, a row per way."""
    rng = np.random.default_rng(seed)
    raw, noise = 110e3 * rng.lognormal(-0.2, 0.65, count), rng.lognormal(0, 0.3, (4, count))
    same, pixels = np.ones(count), 3.5 * raw
    decode, cropped = 1e-8 * pixels, 150_528 * same
    small = (raw / 2.12 * noise[0], raw / 2.23 * noise[1], 68e3 * noise[2], 58e3 * noise[3])
    store = (0 * same, decode, decode + 2e-4, decode + 2e-3, 0.4 * decode, 0.6 * decode)
    trainer = (
        decode + 2e-3,
        2e-3 * same,
        18e-4 * same,
        4e-4 * same,
        0.5 * decode + 2e-3,
        0.5 * decode + 2e-3,
    )
    return (
        np.stack([raw, 3 * pixels, 1.5 * pixels, cropped, *small]),
        np.stack([*store, decode + 2.5e-3, decode + 9e-3]),
        np.stack([*trainer, 2e-3 * same, 5e-3 * same]),
    )


def measure(count: int) -> dict[str, tuple[float, float, OffloadPlan]]:
    """Seconds, bytes and the plan of each case."""
    options, found = make_options(count), {}
    for name, (policy, rates) in CASES.items():

        def call(policy: str | Policy = policy, rates: Rates = rates) -> OffloadPlan:
            return make_plan(policy, options, rates=rates)

        found[name] = best(call, TIMES, time.process_time), peak(call), call()
    return found


def run(folder: Path, told: Told) -> Report:
    found = {count: measure(count) for count in (SIZES[:2] if told.quick else SIZES)}
    return Report(
        "planning, per sample", (costs_of(found), outcomes_of(found)), tuple(bars_of(found)), raw={}
    )


Found = dict[int, dict[str, tuple[float, float, OffloadPlan]]]


def costs_of(found: Found) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name in CASES:
        rows.append((f"{name}: CPU ns/sample", *(f"{1e9 * found[n][name][0] / n:.0f}" for n in found)))
    for name in CASES:
        rows.append((f"{name}: most bytes/sample held", *(f"{found[n][name][1] / n:.1f}" for n in found)))
    return Table(("what", *(f"{count:.0e}" for count in found)), tuple(rows))


def outcomes_of(found: Found) -> Table:
    """What was planned: that the time was spent on a real decision."""
    rows: list[tuple[Cell, ...]] = []
    for name, (_, _, plan) in found[max(found)].items():
        rows.append(
            (name, f"{plan.speedup:.2f}x", f"{plan.saving:.2f}x", f"{plan.offloaded:.1%}", plan.reason)
        )
    return Table(("policy", "predicted speed-up", "fewer bytes", "offloaded", "reason"), tuple(rows))


def bars_of(found: Found) -> list[Bar]:
    """The largest size against the cheapest of the smaller ones; and a million in a few seconds."""
    *smaller, largest = found
    bars = []
    for name in CASES:
        costs = {count: found[count][name][0] / count for count in found}
        factor = costs[largest] / min(costs[count] for count in smaller)
        what = f"{name}: seconds per sample at {largest:.0e} over the least at fewer"
        bars.append(Bar(what, f"under {FLAT:g}x", f"{factor:.2f}x", factor < FLAT))
        spent = found[SIZES[1]][name][0]
        bars.append(Bar(f"{name}: 1e+06 samples", f"under {SECONDS:g} s", f"{spent:.2f} s", spent < SECONDS))
    return bars


if __name__ == "__main__":
    main(__doc__, run)
