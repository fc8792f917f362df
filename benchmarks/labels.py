"""Do relabelling, scans, counts, comparisons and reviews of labels cost the same per row at 1e4, 1e6 and 1e7?

SQLite in a file, ids that are hashes, a thousand classes, margins of which a tenth is in doubt. Models label
all samples as a relabel job does: in its blocks, and for each block it asks what is pending and what models
said of it, and writes. The first two models go through the samples as they lie on disk, where ids come in
any order, the third in order of id; all of that is committed to disk. What is compared is the cost per row at
one size with that at another, in one process. A database is filled once at each size, so that these three are
single runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.store.jobs.relabel import BLOCK
from headwater.store.labels import LabelRows, Source, open_labels
from headwater.store.labels.announced import Announced
from headwater.store.labels.database import LabelDatabase
from headwater.store.labels.wanted import LabelQuery
from measuring import Bar, Cell, Options, Report, Table, best, main, peak

SIZES = (10_000, 1_000_000, 10_000_000)
QUICK = (10_000, 100_000)
CLASSES = 1000
PAGE = 50_000
DATASET = "photos"
SET = 50
TIMES = 5
FLAT = 3.0
"""How much dearer a row may be at the largest size: a tree grows deeper, and the caches end somewhere."""
FLAT_BYTES = 1.3
"""Pages that are filled in many chunks are emptier than those of one."""


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def make_ids(count: int) -> NDArray[np.int64]:
    """As hashes of keys are: anywhere in 63 bits."""
    drawn = np.random.default_rng(count).integers(0, (1 << 63) - 1, count + count // 100, np.int64)
    return np.unique(drawn)[:count]


def predicted(samples: NDArray[np.int64], model: int) -> LabelRows:
    """Answers that look like a model's, and depend on the model."""
    mixed = (samples ^ (samples >> 17)) + model
    spread = ((mixed % 99_991) / 99_991).astype(np.float32)
    rest = {"scores": 1 - spread / 2, "margins": spread}
    return LabelRows.of(samples, mixed % CLASSES, source=Source.MODEL, model=model, **rest)


def as_they_lie(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """On disk samples lie in the order of their keys, which is any order of their hashes."""
    return np.random.default_rng(1).permutation(ids)


def relabel(database: LabelDatabase, ids: NDArray[np.int64], model: Announced) -> None:
    """As `store.jobs.relabel` goes through samples for which nothing but the database is needed."""
    for block, start in enumerate(range(0, len(ids), BLOCK)):
        found = database.recall(DATASET, model.digest, ids[start : start + BLOCK])
        rows = predicted(found.pending, model.number)
        database.write(DATASET, rows, key=f"job {model.number}", chunk=block)


def pages(database: LabelDatabase, digest: str) -> Iterator[NDArray[np.int64]]:
    """What is stale, as a job of one's own asks for it."""
    after = -1
    while len(page := database.stale(DATASET, digest, after=after, limit=PAGE)):
        yield page
        after = int(page[-1])


def grown(call: Callable[[], object]) -> float:
    """By how many bytes the process was larger at most: what SQLite allocates, Python does not see."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before


def resident(name: str) -> float:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return 1024.0 * int(line.split()[1])


def correct(database: LabelDatabase, ids: NDArray[np.int64]) -> None:
    """A person who corrects some labels, one by one."""
    for sample in ids[:: max(1, len(ids) // SET)][:SET]:
        database.write(DATASET, LabelRows.of([sample], [1], source=Source.HUMAN))


def size_of(path: Path) -> int:
    return sum(part.stat().st_size for part in path.parent.glob(path.name + "*"))


def measure(count: int, folder: Path) -> dict[str, float]:
    """Seconds and bytes of everything that is done to a database of so many rows."""
    path, ids = folder / f"{count}.db", make_ids(count)
    lying = as_they_lie(ids)
    found: dict[str, float] = {}
    with closing(open_labels(path)) as database:
        first = database.announce("a" * 32, name="net")
        database.adopt(DATASET, [f"class {number}" for number in range(CLASSES)])
        found["label"] = timed(lambda: relabel(database, lying, first))
        found["first bytes"] = size_of(path)
        second = database.announce("b" * 32, name="net", parent="a" * 32)
        found["stale"] = best(lambda: sum(map(len, pages(database, second.digest))), TIMES)
        found["counts"] = best(lambda: database.counts(DATASET), TIMES)
        found["scan"] = best(lambda: sum(len(part) for part in database.scan(DATASET)), TIMES)
        found["scan peak"] = peak(lambda: sum(len(part) for part in database.scan(DATASET)))
        found["relabel"] = timed(lambda: relabel(database, lying, second))
        found["second bytes"] = size_of(path)
        found["diff"] = best(lambda: database.diff(DATASET, first.digest, second.digest), 2)
        found["diff peak"] = grown(lambda: database.diff(DATASET, first.digest, second.digest))
        third = database.announce("c" * 32, name="net", parent="b" * 32)
        found["relabel by id"] = timed(lambda: relabel(database, ids, third))
        found["set"] = timed(lambda: correct(database, ids)) / SET
        found["undo"] = best(lambda: database.undo(DATASET), TIMES)
        found["review"] = best(lambda: database.review(DATASET, limit=100), TIMES)
        query = LabelQuery(classes=("class 7",))
        found["search"] = best(lambda: database.search(DATASET, query, after=1 << 62, limit=10), TIMES)
        found["look up"] = best(lambda: database.get(DATASET, ids[:: len(ids) // 100]), TIMES)
    for part in folder.glob(f"{count}.db*"):
        part.unlink()
    return found


PER_ROW = {
    "label": f"label: a model's first labels in blocks of {BLOCK:,}, as samples lie (us/row)",
    "relabel": "relabel: a newer model's over them, history kept, as samples lie (us/row)",
    "relabel by id": "relabel by id: a third model's over those, in order of id (us/row)",
    "stale": f"stale: all of them, in pages of {PAGE:,} (us/row)",
    "diff": "diff: two versions, by class (us/row)",
    "counts": "counts: by class and source (us/row)",
    "scan": "scan: all rows as columns (us/row)",
}
ALIKE = {
    "set": "set: one label by hand, on disk (ms)",
    "undo": "undo: of one label by hand, on disk (ms)",
    "review": "review: the 100 smallest margins (ms)",
    "search": "search: 10 rows of a class from the middle on (ms)",
    "look up": "get: 100 samples by id (ms)",
}
BYTES = {
    "first bytes": "bytes/row on disk after one model",
    "second bytes": "bytes/row on disk after two, with history",
}

PEAKS = {
    "scan peak": "scan: most MB held by Python at once",
    "diff peak": "diff: most MB that the process grew by",
}


def rows_of(found: dict[int, dict[str, float]]) -> tuple[tuple[Cell, ...], ...]:
    rows: list[tuple[Cell, ...]] = []
    for name, title in PER_ROW.items():
        rows.append((title, *(f"{1e6 * found[count][name] / count:.2f}" for count in found)))
    for name, title in ALIKE.items():
        rows.append((title, *(f"{1e3 * found[count][name]:.2f}" for count in found)))
    for name, title in BYTES.items():
        rows.append((title, *(f"{found[count][name] / count:.1f}" for count in found)))
    for name, title in PEAKS.items():
        rows.append((title, *(f"{found[count][name] / 1e6:.1f}" for count in found)))
    return tuple(rows)


def bars_of(found: dict[int, dict[str, float]]) -> list[Bar]:
    """The largest size against the cheapest of the smaller ones."""
    *smaller, largest = found
    bars = []
    for name in (*PER_ROW, *ALIKE):
        costs = {count: found[count][name] / (count if name in PER_ROW else 1) for count in found}
        factor = costs[largest] / min(costs[count] for count in smaller)
        what = f"{name}: seconds at {largest:.0e} over the least at fewer rows"
        bars.append(Bar(what, f"under {FLAT:g}x", f"{factor:.2f}x", factor < FLAT))
    for name in BYTES:
        ratio = found[largest][name] / largest / min(found[count][name] / count for count in smaller)
        bars.append(
            Bar(f"{name} per row, the same", f"under {FLAT_BYTES}x", f"{ratio:.3f}x", ratio < FLAT_BYTES)
        )
    return bars


def run(folder: Path, options: Options) -> Report:
    found = {count: measure(count, folder) for count in (QUICK if options.quick else SIZES)}
    table = Table(("what", *(f"{count:.0e}" for count in found)), rows_of(found))
    raw = {str(count): values for count, values in found.items()}
    return Report("a label database per row", (table,), tuple(bars_of(found)), raw=raw)


if __name__ == "__main__":
    main(__doc__, run)
