"""Do writes, stale scans, counts and reviews of labels cost the same per row at 1e4, 1e6 and 1e7 rows?

SQLite in a file, ids that are hashes, a thousand classes, margins of which a tenth is in doubt. A first model
labels every sample in chunks of a job, in order of id, then a second one relabels what is stale; all of that
is committed to disk. What is compared is the cost per row at one size with that at another, in one process. A
database is filled once at each size, so that these two are single runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.store.labels import LabelRows, Source, open_labels
from headwater.store.labels.database import LabelDatabase
from headwater.store.labels.queries import LabelQuery
from measuring import Bar, Cell, Options, Report, Table, best, main, peak

SIZES = (10_000, 1_000_000, 10_000_000)
CLASSES = 1000
CHUNK = 50_000
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


def label_all(database: LabelDatabase, ids: NDArray[np.int64], model: int) -> None:
    for chunk, start in enumerate(range(0, len(ids), CHUNK)):
        rows = predicted(ids[start : start + CHUNK], model)
        database.write(DATASET, rows, key=f"first {len(ids)}", chunk=chunk)


def pages(database: LabelDatabase, digest: str) -> Iterator[NDArray[np.int64]]:
    """What is stale, as a job asks for it."""
    after = -1
    while len(page := database.stale(DATASET, digest, after=after, limit=CHUNK)):
        yield page
        after = int(page[-1])


def relabel(database: LabelDatabase, digest: str, model: int) -> None:
    for page in pages(database, digest):
        database.write(DATASET, predicted(page, model), key="second", chunk=int(page[0]))


def correct(database: LabelDatabase, ids: NDArray[np.int64]) -> None:
    """A person who corrects some labels, one by one."""
    for sample in ids[:: max(1, len(ids) // SET)][:SET]:
        database.write(DATASET, LabelRows.of([sample], [1], source=Source.HUMAN))


def size_of(path: Path) -> int:
    return sum(part.stat().st_size for part in path.parent.glob(path.name + "*"))


def measure(count: int, folder: Path) -> dict[str, float]:
    """Seconds and bytes of everything that is done to a database of so many rows."""
    path, ids = folder / f"{count}.db", make_ids(count)
    found: dict[str, float] = {}
    with closing(open_labels(path)) as database:
        first = database.announce("a" * 32, name="net").number
        database.adopt(DATASET, [f"class {number}" for number in range(CLASSES)])
        found["label"] = timed(lambda: label_all(database, ids, first))
        found["first bytes"] = size_of(path)
        second = database.announce("b" * 32, name="net", parent="a" * 32)
        found["stale"] = best(lambda: sum(map(len, pages(database, second.digest))), TIMES)
        found["counts"] = best(lambda: database.counts(DATASET), TIMES)
        found["scan"] = best(lambda: sum(len(part) for part in database.scan(DATASET)), TIMES)
        found["scan peak"] = peak(lambda: sum(len(part) for part in database.scan(DATASET)))
        found["relabel"] = timed(lambda: relabel(database, second.digest, second.number))
        found["second bytes"] = size_of(path)
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
    "label": f"write: a model's labels in chunks of {CHUNK:,}, on disk (us/row)",
    "relabel": "relabel: a newer model's over them, history kept, the stale ones looked for (us/row)",
    "stale": f"stale: all of them, in pages of {CHUNK:,} (us/row)",
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


def rows_of(found: dict[int, dict[str, float]]) -> tuple[tuple[Cell, ...], ...]:
    rows: list[tuple[Cell, ...]] = []
    for name, title in PER_ROW.items():
        rows.append((title, *(f"{1e6 * found[count][name] / count:.2f}" for count in found)))
    for name, title in ALIKE.items():
        rows.append((title, *(f"{1e3 * found[count][name]:.2f}" for count in found)))
    for name, title in BYTES.items():
        rows.append((title, *(f"{found[count][name] / count:.1f}" for count in found)))
    peaks = (f"{found[count]['scan peak'] / 1e6:.1f}" for count in found)
    rows.append(("scan: most MB held by Python at once", *peaks))
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
    found = {count: measure(count, folder) for count in (SIZES[:2] if options.quick else SIZES)}
    table = Table(("what", *(f"{count:.0e}" for count in found)), rows_of(found))
    raw = {str(count): values for count, values in found.items()}
    return Report("a label database per row", (table,), tuple(bars_of(found)), raw=raw)


if __name__ == "__main__":
    main(__doc__, run)
