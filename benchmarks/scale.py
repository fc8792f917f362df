"""Do index, order and draws cost the same per sample at 1e4, 1e6 and 1e7 ids?

Synthetic keys such as a folder of a thousand classes has. Seconds are the best of several: what is compared
is the cost per sample at one size with that at another, in one process.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headwater import transforms as T
from headwater.data.index import Index
from headwater.data.randomness import derive_key
from headwater.engine.permutation import Shuffled
from measuring import Bar, Cell, Options, Report, Table, main

SIZES = (10_000, 1_000_000, 10_000_000)
LOOKED_UP = 4096
SLICE = 256
FLAT = 3.0
"""How much dearer a sample may be at the largest size: the caches of a CPU end somewhere."""
_BLOCK = 1 << 16


def best(call: Callable[[], object], times: int) -> float:
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found)


def peak(call: Callable[[], object]) -> float:
    """Most bytes that were allocated at once; numpy tells tracemalloc of its arrays."""
    tracemalloc.start()
    try:
        call()
        return float(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def make_keys(count: int) -> pa.Array:
    """class-000/00000000.jpg and so on, made in bulk."""
    numbers = np.arange(count)
    classes = pc.utf8_lpad(pa.array(numbers % 1000).cast(pa.large_string()), 3, "0")
    names = pc.utf8_lpad(pa.array(numbers).cast(pa.large_string()), 8, "0")
    text = [pa.scalar(piece, pa.large_string()) for piece in ("class-", "/", ".jpg", "")]
    return pc.binary_join_element_wise(text[0], classes, text[1], names, text[2], text[3])


def draw_all(ids: NDArray[np.int64]) -> None:
    """Every crop of an epoch, by the block, as a planner would ask for them."""
    pipeline = T.Compose([T.RandomResizedCrop(224)])
    for start in range(0, len(ids), _BLOCK):
        some = ids[start : start + _BLOCK]
        pipeline.draw(some, np.broadcast_to(np.array([400, 470]), (len(some), 2)), seed=1, epoch=2)


def take_all(order: Shuffled) -> None:
    """A whole epoch's order, by the block."""
    for start in range(0, order.count, _BLOCK):
        order.take(start, min(start + _BLOCK, order.count))


def measure(count: int, folder: Path) -> dict[str, float]:
    """Seconds of each operation, and bytes per sample in memory and on disk."""
    times = 1 if count > 5_000_000 else 3
    keys, sizes, path = make_keys(count), np.full(count, 110_000, np.int64), folder / f"{count}.arrow"
    labels = np.arange(count) % 1000
    found = {"build": best(lambda: Index.build(keys, sizes, labels=labels), times)}
    index = Index.build(keys, sizes, labels=labels)
    found["save"] = best(lambda: index.save(path), times)
    found["open"] = best(lambda: Index.load(path), times)
    wanted = np.random.default_rng(0).choice(index.ids, LOOKED_UP)
    found["position_of"] = best(lambda: index.position_of(wanted), 5)
    middle = count // 2
    # a new order each time: below 2^16 ids it is a table, which is made by the first who asks
    found["slice"] = best(lambda: Shuffled(count, derive_key(count)).take(middle, middle + SLICE), 5)
    found["order"] = best(lambda: take_all(Shuffled(count, derive_key(count))), times)
    found["draws"] = best(lambda: draw_all(index.ids), times)
    found["order peak"] = peak(lambda: take_all(Shuffled(count, derive_key(count)))) / count
    found["draws peak"] = peak(lambda: draw_all(index.ids)) / count
    found["memory"], found["file"] = index.nbytes / count, path.stat().st_size / count
    path.unlink()
    return found


PER_SAMPLE = {
    "build": "index: build, hashes included (ns/sample)",
    "save": "index: save, with fsync (ns/sample)",
    "open": "index: open, digest checked (ns/sample)",
    "order": "order: a whole epoch (ns/sample)",
    "draws": "draws: RandomResizedCrop boxes of an epoch (ns/sample)",
}


def rows_of(found: dict[int, dict[str, float]]) -> tuple[tuple[Cell, ...], ...]:
    rows: list[tuple[Cell, ...]] = []
    for name, title in PER_SAMPLE.items():
        rows.append((title, *(f"{1e9 * found[count][name] / count:.0f}" for count in found)))
    looked = (f"{1e9 * found[count]['position_of'] / LOOKED_UP:.0f}" for count in found)
    rows.append((f"index: position_of {LOOKED_UP} ids (ns/id)", *looked))
    slices = (f"{1e6 * found[n]['slice']:.0f}" for n in found)
    rows.append((f"order: {SLICE} places in mid-epoch (us)", *slices))
    rows.append(("index: bytes/sample in memory", *(f"{found[n]['memory']:.1f}" for n in found)))
    rows.append(("index: bytes/sample on disk", *(f"{found[n]['file']:.1f}" for n in found)))
    for name in ("order peak", "draws peak"):
        title = f"{name.split()[0]}: most bytes/sample held while an epoch is made by blocks of {_BLOCK}"
        rows.append((title, *(f"{found[n][name]:.1f}" for n in found)))
    return tuple(rows)


def bars_of(found: dict[int, dict[str, float]]) -> list[Bar]:
    """The largest size against the cheapest of the smaller ones."""
    *smaller, largest = found
    bars = []
    for name in (*PER_SAMPLE, "position_of", "slice"):
        costs = {count: found[count][name] / (count if name in PER_SAMPLE else 1) for count in found}
        factor = costs[largest] / min(costs[count] for count in smaller)
        what = f"{name}: seconds at {largest:.0e} over the least at fewer ids"
        bars.append(Bar(what, f"under {FLAT:g}x", f"{factor:.2f}x", factor < FLAT))
    ratio = found[largest]["memory"] / min(found[count]["memory"] for count in smaller)
    bars.append(Bar("bytes per sample, the same", "under 1.05x", f"{ratio:.3f}x", ratio < 1.05))
    return bars


def run(folder: Path, options: Options) -> Report:
    found = {count: measure(count, folder) for count in (SIZES[:2] if options.quick else SIZES)}
    table = Table(("what", *(f"{count:.0e}" for count in found)), rows_of(found))
    raw = {str(count): values for count, values in found.items()}
    return Report("index, order and draws per sample", (table,), tuple(bars_of(found)), raw=raw)


if __name__ == "__main__":
    main(__doc__, run)
