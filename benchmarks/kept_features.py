"""Do features that a store keeps cost the same per sample at 1e4, 1e6 and 1e7 samples?

Eight features a sample, so that ten million fit anywhere; the rest of an entry does not depend on how many
there are. Entries are added 512 at a time, as a job does, in no order of ids; then the files are opened
again, as a store does at its start, and norms and features are asked for 8,192 samples at a time.
"""

from __future__ import annotations

import gc
import shutil
import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.engine.drawer import Drawer
from headwater.plan.movement import norms_of
from measuring import Bar, Cell, Options, Report, Table, best, main

SIZES = (10_000, 1_000_000, 10_000_000)
WIDTH = 8
ADDED, ASKED = 512, 8192
TIMES = 15
FLAT = 3.0
"""How much dearer a sample may be at the largest size: caches end somewhere."""
LEAST = {"norms": 0.1, "get": 0.5}
"""What looking up may cost of the matrix product that is spared by a norm, or needs the features."""
MOST_BYTES = 18.0
"""In memory, per sample: the 16 that are promised, and a little for the rest."""

ROWS = {
    "add": "add 512 at a time (us of CPU/sample)",
    "open": "open the files of an earlier process, for its dataset (us of CPU/sample)",
    "norms": "norms of 8,192 samples (us of CPU/sample)",
    "get": "features of 8,192 samples, with their checksums (us of CPU/sample)",
    "memory": "held in memory (bytes/sample)",
    "peak": "most in memory while opening (bytes/sample)",
    "disk": "on disk (bytes/sample)",
}


def make_ids(count: int) -> NDArray[np.int64]:
    """As hashes of keys are: anywhere in 63 bits, in no order."""
    drawn = np.random.default_rng(count).integers(0, (1 << 63) - 1, count + count // 100, np.int64)
    found = np.unique(drawn)[:count]
    return np.random.default_rng(1).permutation(found)


def fill(drawer: Drawer, ids: NDArray[np.int64]) -> None:
    features = np.abs(np.random.default_rng(2).normal(size=(ADDED, WIDTH))).astype(np.float16)
    entries, norms = [memoryview(row) for row in features.view(np.uint8)], norms_of(features)
    for begin in range(0, len(ids), ADDED):
        part = ids[begin : begin + ADDED]
        count = len(part)
        drawer.add(part, np.full(count, 9), entries=entries[:count], norms=norms[:count])


def timed(call: Callable[[], object]) -> float:
    """CPU seconds, which a busy machine does not stretch."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def product_seconds() -> float:
    """What one sample costs in the matrix product that its norm may spare: 1,280 features, 1,000 classes."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(ASKED, 1280)).astype(np.float32)
    weight = rng.normal(size=(1000, 1280)).astype(np.float32)
    return best(lambda: features @ weight.T, 5, time.process_time) / ASKED


def measure(count: int, folder: Path) -> dict[str, float]:
    """Seconds and bytes per sample of a drawer with so many."""
    folder.mkdir()
    ids = make_ids(count)
    found = write(folder, ids)
    gc.collect()
    found |= look(folder, ids)
    shutil.rmtree(folder)
    return found


def write(folder: Path, ids: NDArray[np.int64]) -> dict[str, float]:
    with closing(Drawer(folder)) as drawer:
        seconds = timed(lambda: fill(drawer, ids))
        return {"add": seconds / len(ids), "disk": drawer.nbytes / len(ids)}


def look(folder: Path, ids: NDArray[np.int64]) -> dict[str, float]:
    """What another process finds."""
    sizes, count = np.full(len(ids), 9), len(ids)
    with closing(Drawer(folder)) as drawer:
        opening = timed(lambda: drawer.hold(ids, sizes))
    opening += timed(lambda: Drawer(folder).close())
    tracemalloc.start()
    with closing(Drawer(folder)) as drawer:
        drawer.hold(ids, sizes)
        held, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        asked = np.random.default_rng(3).choice(ids, min(ASKED, count), replace=False)
        norms = best(lambda: bound(drawer, asked), TIMES, time.process_time)
        reading = best(lambda: drawer.read(drawer.find(asked)), TIMES, time.process_time)
    return {
        "open": opening / count,
        "memory": held / count,
        "peak": most / count,
        "norms": norms / len(asked),
        "get": reading / len(asked),
    }


def bound(drawer: Drawer, asked: NDArray[np.int64]) -> None:
    """What the skip rule looks at: the norms, and when each was added."""
    rows = drawer.find(asked)
    drawer.norms(rows)
    drawer.added(rows)


def rows_of(found: dict[int, dict[str, float]]) -> tuple[tuple[Cell, ...], ...]:
    factor = {name: 1.0 if name in ("memory", "peak", "disk") else 1e6 for name in ROWS}
    return tuple(
        (title, *(f"{factor[name] * found[count][name]:.2f}" for count in found))
        for name, title in ROWS.items()
    )


def bars_of(found: dict[int, dict[str, float]]) -> tuple[Bar, ...]:
    *smaller, largest = found
    bars = []
    for name in ("add", "open"):
        ratio = found[largest][name] / min(found[count][name] for count in smaller)
        what = f"{name}: seconds per sample at {largest:.0e} over the least at fewer"
        bars.append(Bar(what, f"under {FLAT:g}x", f"{ratio:.2f}x", ratio < FLAT))
    product = product_seconds()
    for name, most in LEAST.items():
        share = found[largest][name] / product
        what = f"{name}: seconds per sample at {largest:.0e} over those of the product"
        bars.append(Bar(what, f"under {most:g}", f"{share:.3f}", share < most))
    held = found[largest]["memory"]
    bars.append(Bar("memory per sample", f"under {MOST_BYTES:g} bytes", f"{held:.1f}", held < MOST_BYTES))
    return tuple(bars)


def run(folder: Path, options: Options) -> Report:
    sizes = SIZES[:2] if options.quick else SIZES
    found = {count: measure(count, folder / f"{count}") for count in sizes}
    table = Table(("what", *(f"{count:.0e}" for count in found)), rows_of(found))
    return Report(
        "kept features per sample", (table,), bars_of(found), raw={str(k): v for k, v in found.items()}
    )


if __name__ == "__main__":
    main(__doc__, run)
