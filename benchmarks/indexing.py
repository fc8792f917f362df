"""How fast is a folder indexed, and how soon and how small is an indexed one open?

Indexing is compared with a bare loop that opens each file and reads its first 4 kB, over the same files;
each measurement begins without a cached index. The files are small, so that names and not bytes are what
counts. The cached index has a million rows in a thousand directories, and is opened by fresh processes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

import headwater as hw
from headwater.data.index import Index, Places
from headwater.data.synthetic import make_photos
from measuring import Bar, Options, Report, Table, at_least, compare, interleave, main, rate_table

FILE_BYTES = 4096
CHILD = "--child"


def make_folder(root: Path, *, folders: int, files: int) -> list[str]:
    """`folders` directories of `files` files each, all with the beginning of one photo; their paths."""
    head, paths = next(make_photos(np.arange(1), classes=2, seed=0))[:FILE_BYTES], []
    for folder in range(folders):
        directory = root / f"class-{folder:04d}"
        directory.mkdir(parents=True)
        for number in range(files):
            path = directory / f"{number:08d}.jpg"
            path.write_bytes(head)
            paths.append(str(path))
    return paths


class Contenders:
    def __init__(self, folder: Path, options: Options) -> None:
        self._folder = folder
        self._paths = make_folder(folder / "photos", folders=100, files=20 if options.quick else 250)
        self._built = 0

    def bare(self) -> float:
        """Open each file, read 4 kB."""
        begin, read = time.perf_counter(), 0
        for path in self._paths:
            with open(path, "rb") as file:
                read += len(file.read(FILE_BYTES))
        assert read == FILE_BYTES * len(self._paths)
        return len(self._paths) / (time.perf_counter() - begin)

    def index(self) -> float:
        """`hw.open` with an empty cache."""
        self._built += 1
        os.environ["HEADWATER_CACHE"] = str(self._folder / f"cache-{self._built}")
        begin = time.perf_counter()
        data = hw.open(self._folder / "photos", progress=False)
        spent = time.perf_counter() - begin
        assert len(data) == len(self._paths)
        return len(self._paths) / spent


def widen_index(root: Path, cache: Path, count: int) -> None:
    """Put an index of `count` rows in the place of the folder's own, spread over its directories."""
    small = hw.open(root, progress=False).index
    shards = small.places.shards
    named = np.flatnonzero([bool(name) for name in shards]).astype(np.int32)
    shard = np.sort(named[np.arange(count) % len(named)])
    folders = pa.array(shards, pa.large_string()).take(pa.array(shard))
    names = pc.utf8_lpad(pa.array(np.arange(count)).cast(pa.large_string()), 8, "0")
    slash, suffix, nothing = (pa.scalar(piece, pa.large_string()) for piece in ("/", ".jpg", ""))
    keys = pc.binary_join_element_wise(folders, slash, names, suffix, nothing)
    sizes, labels = np.full(count, 110_000, np.int64), np.searchsorted(named, shard)
    places = Places(shards, shard, np.zeros(count, np.int64))
    wide = Index.build(keys, sizes, labels=labels, classes=small.classes, places=places)
    (file,) = cache.glob("*.arrow")
    dataclasses.replace(wide, notes=small.notes).save(file)


def open_once(root: Path) -> dict[str, float]:
    """What one fresh process measures: seconds, and memory before and after."""
    import headwater.store  # noqa: F401 - its import is not part of opening

    process = psutil.Process()
    before, begin = process.memory_full_info(), time.perf_counter()
    data = hw.open(root, progress=False)
    spent, after = time.perf_counter() - begin, process.memory_full_info()
    return {
        "seconds": spent,
        "rss": (after.rss - before.rss) / len(data),
        "uss": (after.uss - before.uss) / len(data),
        "nbytes": data.index.nbytes / len(data),
        "samples": len(data),
    }


def child(root: Path, cache: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, CHILD, str(root)]
    environment = {**os.environ, "HEADWATER_CACHE": str(cache)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def open_cached(folder: Path, options: Options) -> list[dict[str, Any]]:
    root, cache, count = folder / "thousand", folder / "cache", 100_000 if options.quick else 1_000_000
    os.environ["HEADWATER_CACHE"] = str(cache)
    make_folder(root, folders=1000, files=1)
    time.sleep(0.1)  # a directory that changed within the last 50 ms is looked at again
    widen_index(root, cache, count)
    found = [child(root, cache) for _ in range(max(2, min(options.rounds, 5)))]
    assert all(one["samples"] == count for one in found)
    return found


OPENING = {
    "seconds": "seconds to open",
    "nbytes": "bytes/sample of the columns",
    "rss": "bytes/sample of resident memory, mapped file included",
    "uss": "bytes/sample of memory of its own",
}


def run(folder: Path, options: Options) -> Report:
    contenders = Contenders(folder, options)
    rates = interleave({"index": contenders.index, "bare loop": contenders.bare}, rounds=options.rounds)
    opened = open_cached(folder, options)
    medians = {name: statistics.median(found[name] for found in opened) for name in OPENING}
    rows = []
    for name, title in OPENING.items():
        values = [found[name] for found in opened]
        rows.append((title, f"{medians[name]:.2f}", f"{min(values):.2f}..{max(values):.2f}"))
    samples, most = opened[0]["samples"], max(medians["rss"], medians["nbytes"])
    titles = (f"{samples:,} samples in 1,000 directories", f"median of {len(opened)}", "min..max")
    return Report(
        "indexing a folder: files/s; and a cached index: seconds and bytes",
        (rate_table(rates, "index", "files/s"), Table(titles, tuple(rows))),
        (
            at_least(compare(rates, "index", "bare loop"), 0.5),
            Bar("open a cached index", "about 1 s", f"{medians['seconds']:.2f} s", medians["seconds"] < 1.2),
            Bar("bytes per sample", "under 150", f"{most:.0f}", most < 150),
        ),
        (f"files of {FILE_BYTES} bytes in the page cache; each measurement begins without an index",),
        raw={"rates": rates, "opened": opened},
    )


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        print(json.dumps(open_once(Path(sys.argv[2]))))
    else:
        main(__doc__, run)
