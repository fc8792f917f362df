"""Is a store held to its cores, and does it use them, when clients want far more?

CPU seconds of the store's process and its workers, in every window of ten seconds, over the cores that it was
given. Clients only fetch, in processes of their own: photos as files, photos cut at the store, both, and
pages of an index of 50,000 files. Where steps are asked for, enough samples must be cut that the workers' CPU
is part of what is measured. A control asks for little, and nothing of it may be sent back raw.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.store.client.status import status
from measuring import Bar, Cell, Options, Report, Table, main
from serving import CpuWatch, Reader, Store, fetch_together, make_tars, serve
from small_files import make_parquet

WINDOW_SECONDS = 10.0
WARM_SECONDS = 3.0
DEMANDS: dict[str, list[dict[str, float]]] = {
    "raw": [{"threads": 6, "batch": 64}],
    "offload": [{"threads": 6, "batch": 64, "cut": 4}],
    "mixed": [{"threads": 4, "batch": 64, "cut": 4}, {"threads": 4, "batch": 64}],
    "index": [{"threads": 6, "index": True}],
}
CUTTING = [demand for demand, how in DEMANDS.items() if any("cut" in some for some in how)]
LEAST_CUT = 0.1
CONTROL: list[dict[str, float]] = [{"threads": 1, "batch": 8, "cut": 4, "rest": 0.25}]


@dataclass(frozen=True)
class Found:
    """One run: the store's use in every window, in cores, and what it answered."""

    cores: float
    demand: str
    windows: tuple[float, ...]
    counts: Mapping[str, float]
    megabytes_per_second: float


def _counts(store: Store) -> dict[str, float]:
    """Samples by outcome, and under `held` the seconds for which requests were held back for cores."""
    metrics: dict[str, Any] = status(store.address)["metrics"]
    return {
        **metrics["headwater_samples_total"],
        "held": metrics["headwater_stall_seconds_total"]["cores"],
    }


def measure(photos: Path, cores: float, demand: str, *, how: list[dict[str, float]], seconds: float) -> Found:
    with ExitStack() as stack:
        store = stack.enter_context(serve(photos, cores=cores))
        readers = {str(n): stack.enter_context(Reader(store.photos, some)) for n, some in enumerate(how)}
        watch = stack.enter_context(CpuWatch(store.pid))
        before, begin = _counts(store), time.monotonic() + WARM_SECONDS
        got = fetch_together(readers, begin, begin + WINDOW_SECONDS + seconds)
        after, windows = _counts(store), watch.windows(begin, WINDOW_SECONDS)
    counts = {kind: count - before.get(kind, 0) for kind, count in after.items()}
    rate = sum(client["bytes"] / client["seconds"] for client in got.values()) / 1e6
    print(f"{cores:g} cores, {demand}: {_range(windows)}", file=sys.stderr, flush=True)
    return Found(cores, demand, windows, counts, rate)


def _range(values: tuple[float, ...]) -> str:
    return f"{min(values):.3f}..{max(values):.3f}"


def _held(found: Found) -> Bar:
    shares = tuple(window / found.cores for window in found.windows)
    what = f"{found.demand}, {found.cores:g} cores: CPU of any 10 s over the budget"
    return Bar(what, "0.9 to 1.1", _range(shares), min(shares) >= 0.9 and max(shares) <= 1.1)


def _cut(found: Found) -> Bar:
    share = found.counts["cut"] / max(1, found.counts["cut"] + found.counts["pushed_back"])
    what = f"{found.demand}, {found.cores:g} cores: samples cut, of those asked for"
    return Bar(what, f"at least {LEAST_CUT:.0%}", f"{share:.0%}", share >= LEAST_CUT)


def _row(found: Found) -> tuple[Cell, ...]:
    counts = [round(found.counts[kind]) for kind in ("raw", "cut", "pushed_back", "held")]
    rate = f"{found.megabytes_per_second:.0f}"
    return f"{found.cores:g}", found.demand, _range(found.windows), *counts, rate


def run(folder: Path, options: Options) -> Report:
    photos = make_tars(folder, options, megabytes=80)
    rows = folder / "rows.parquet"
    make_parquet(rows, 50_000)
    seconds = 3.0 if options.quick else 25.0
    found = [
        measure(rows if demand == "index" else photos, cores, demand, how=how, seconds=seconds)
        for cores in ((0.5,) if options.quick else (0.25, 0.5, 1.0))
        for demand, how in DEMANDS.items()
    ]
    control = measure(photos, 1.0, "control", how=CONTROL, seconds=3.0 if options.quick else 10.0)
    table = tuple(_row(one) for one in (*found, control))
    columns = ("cores", "demand", "cores used in 10 s", "raw", "cut", "pushed back", "held back, s", "MB/s")
    pushed = round(control.counts["pushed_back"])
    quiet = Bar("control: samples pushed back", "0", str(pushed), pushed == 0 and control.counts["cut"] > 0)
    return Report(
        "a store's CPU against its budget",
        (Table(columns, table),),
        (*(_held(one) for one in found), *(_cut(one) for one in found if one.demand in CUTTING), quiet),
        (f"clients fetch for {WINDOW_SECONDS + seconds:g} s after {WARM_SECONDS:g} s that do not count",),
        raw={"windows": {f"{one.cores:g} {one.demand}": one.windows for one in (*found, control)}},
    )


if __name__ == "__main__":
    main(__doc__, run)
