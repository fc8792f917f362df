"""Does the planner give the published traffic and speed-ups for the sizes that SOPHON's authors measured?

`--data` is the folder with openimages_sizes.csv: bytes of 40,000 files, raw and after every step, as
serialised by the authors; without it, sizes are made up along that profile's quantiles, and only the shape is
asked for. Step costs are a model, not a measurement: 10 ns a pixel to decode, 2 ms to crop and resize, 0.1 ms
to flip, 0.5 ms to a tensor, 0.5 ms to normalise. Link of 430 Mbit/s. Nothing runs: times are predicted.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.plan.offload import Offload, OffloadPlan, Options, Rates, make_plan
from headwater.plan.offload.fixed import Fixed
from headwater.plan.offload.workload import Policy
from measuring import Bar, Cell, Report, Table, main
from measuring import Options as Told

NAME = "openimages_sizes.csv"
LINK = 430e6 / 8
AMPLE = 64.0
FEW = (0.5, 1.0, 2.0, 4.0)
COLUMNS = ("raw", "decoding", "RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize")
DECODE_PER_PIXEL = 10e-9
STEP_SECONDS = (2e-3, 1e-4, 5e-4, 5e-4)
WAYS = tuple(Offload(cut) for cut in range(len(COLUMNS)))
QUANTILES = dict(
    zip(
        (0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1),
        (20e3, 48.4e3, 75.7e3, 97.7e3, 151.9e3, 255.2e3, 421.5e3, 620e3, 763e3, 1031e3, 1500e3),
        strict=True,
    )
)
"""Raw bytes of that profile."""
POLICIES: dict[str, str | Policy] = {
    "none": "none",
    "all": "all",
    "fixed": Fixed(Offload(2)),
    "throughput": "throughput",
    "efficiency": "efficiency",
    "hull": "hull",
}
PUBLISHED = {"efficiency": 2.28, "fixed": 2.11, "all": 0.53}
"""Fewer bytes than `none`, from that profile."""


def read_options(path: Path) -> Options:
    """The authors' sizes, with the modelled costs."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter=";"))
    sizes = np.array([[float(row[name]) for name in COLUMNS] for row in rows])
    pixels = np.array(
        [np.prod([int(side) for side in row["original_shape"].strip("()").split(",")]) for row in rows]
    )
    store = costs_of(pixels.astype(np.float64))
    return Options(WAYS, sizes, store, store[:, -1:] - store)


def make_options(count: int) -> Options:
    """Raw sizes along the profile's quantiles; photos of 0.75 megapixels."""
    shares, sizes = zip(*QUANTILES.items(), strict=True)
    raw = np.interp(np.random.default_rng(0).random(count), shares, sizes)
    pixels = np.full(count, 7.5e5)
    crop, tensor = np.full(count, 150_561.0), np.full(count, 602_145.0)
    store = costs_of(pixels)
    return Options(
        WAYS, np.stack([raw, 3 * pixels, crop, crop, tensor, tensor], axis=1), store, store[:, -1:] - store
    )


def costs_of(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """CPU seconds up to and with each step; the trainer does what is left, on the same kind of core."""
    steps = np.empty((len(pixels), len(COLUMNS)))
    steps[:, 0], steps[:, 1], steps[:, 2:] = 0, DECODE_PER_PIXEL * pixels, STEP_SECONDS
    return steps.cumsum(axis=1)


def plans_of(options: Options, cores: float) -> dict[str, OffloadPlan]:
    rates = Rates(link=LINK, store_cores=cores)
    return {name: make_plan(policy, options, rates=rates) for name, policy in POLICIES.items()}


def table_of(found: dict[float, dict[str, OffloadPlan]]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for cores, plans in found.items():
        for name, plan in plans.items():
            times, seconds = (f"{plan.speedup:.2f}x", f"{plan.saving:.2f}x"), plan.after.store_seconds
            trainer = plan.after.trainer_seconds
            rows.append((f"{cores:g}", name, f"{plan.offloaded:.1%}", *times, round(seconds), round(trainer)))
    columns = (
        "store cores",
        "policy",
        "offloaded",
        "speed-up",
        "fewer bytes",
        "store CPU s",
        "trainer CPU s",
    )
    return Table(columns, tuple(rows))


def published_bars(plans: dict[str, OffloadPlan]) -> list[Bar]:
    bars = []
    for name, asked in PUBLISHED.items():
        found = plans[name].saving
        holds = abs(found / asked - 1) < 0.01
        bars.append(Bar(f"{name}, ample cores: fewer bytes", f"{asked}x within 1 %", f"{found:.3f}x", holds))
    share = plans["efficiency"].offloaded
    holds = abs(share - 0.753) < 0.001
    return [*bars, Bar("efficiency: samples offloaded", "75.3 %", f"{share:.2%}", holds)]


def few_cores_bars(cores: float, plans: dict[str, OffloadPlan]) -> list[Bar]:
    least = max(plans["none"].speedup, plans["fixed"].speedup)
    bars = []
    for name in ("efficiency", "hull"):
        found = plans[name].speedup
        what = f"{name}, {cores:g} store cores: speed-up"
        bars.append(Bar(what, f"at least {least:.2f}x (none, fixed)", f"{found:.2f}x", found >= least))
    return bars


def run(folder: Path, told: Told) -> Report:
    path = (told.data or folder) / NAME
    real = path.is_file()
    options = read_options(path) if real else make_options(40_000)
    found = {cores: plans_of(options, cores) for cores in (*FEW, AMPLE)}
    bars = published_bars(found[AMPLE]) if real else []
    for cores in FEW:
        bars += few_cores_bars(cores, found[cores])
    notes = [f"hull, {cores:g} cores: {found[cores]['hull'].reason}" for cores in FEW]
    question = f"{len(options):,} {'OpenImages files' if real else 'made-up files'}, predicted"
    return Report(question, (table_of(found),), tuple(bars), tuple(notes))


if __name__ == "__main__":
    main(__doc__, run)
