"""The largest batch under a hard limit on memory: ours against plain training, and against other ways.

Each size is tried in a process of its own with RLIMIT_DATA; glibc gives freed memory back at once, oneDNN
keeps no scratch memory, and threads of OpenMP have small stacks, for all ways alike. Sizes are found to
within a sixteenth. Answers are in `--work`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from measuring import Bar, Flag, Options, Report, Table, main

WAYS = ("plain", "blocks", "layer inputs", "everything", "ours")
NETS = ("ResNet-50-like", "VGG", "transformer", "LSTM")
PINNED = {
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_ARENA_MAX": "1",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0",
    "OMP_STACKSIZE": "512K",
}
CHILD = Path(__file__).parent / "processes" / "batch_size.py"
FLAGS = {"limit": Flag(64.0, "MiB that a process may have beyond what it has after warming up")}


class Kept:
    """Answers of an earlier run, so that a long one can be stopped."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / "max_batch.json" if folder is not None else None
        self._found: dict[str, dict[str, object]] = {}
        if self._path is not None and self._path.exists():
            self._found = json.loads(self._path.read_text())

    def ask(self, words: list[str]) -> dict[str, object]:
        key = " ".join(words)
        if key not in self._found:
            self._found[key] = _try(words)
            if self._path is not None:
                self._path.write_text(json.dumps(self._found, indent=1))
        return self._found[key]


def _try(words: list[str]) -> dict[str, object]:
    environment = os.environ | PINNED | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(CHILD), *words], env=environment, capture_output=True, text=True
    )
    lines = done.stdout.strip().splitlines()
    # A limit can also be hit where nothing catches it; then the size does not fit.
    found: dict[str, object] = json.loads(lines[-1]) if done.returncode == 0 and lines else {"fits": False}
    fault = done.stderr.strip().splitlines()[-1:] if done.returncode else ""
    print(f"{' '.join(words)}: {found} {fault}", file=sys.stderr, flush=True)
    return found


def largest(fits: Callable[[int], bool], start: int, fine: int) -> int:
    """Doubling, then halving between, to within a share of one in `fine`."""
    good, bad = 0, start
    while fits(bad):
        good, bad = bad, bad * 2
    while bad - good > max(1, bad // fine):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _fits(kept: Kept, name: str, way: str, limit: int, small: int, size: int) -> bool:
    words = [name, way, str(size), str(limit)]
    if way == "ours":
        least = kept.ask([name, way, str(small), "0"])["budget"]
        words.append(str(int(str(least)) * size // small))
    return bool(kept.ask(words)["fits"])


def run(folder: Path, options: Options) -> Report:
    kept = Kept(options.folders["work"])
    limit = int(options.numbers["limit"] * 2**20)
    names = NETS[:1] if options.quick else NETS
    ways = ("plain", "everything", "ours") if options.quick else WAYS
    found: dict[str, dict[str, int]] = {}
    for name in names:
        row: dict[str, int] = {}
        for way in ways:
            fits = partial(_fits, kept, name, way, limit, row.get("plain", 8))
            row[way] = largest(fits, row.get("plain", 8), 4 if options.quick else 16)
        found[name] = row
    return report(found, ways)


def report(found: dict[str, dict[str, int]], ways: tuple[str, ...]) -> Report:
    rows, bars = [], []
    for name, row in found.items():
        best = max(size for way, size in row.items() if way not in ("plain", "ours"))
        over_plain, over_best = row["ours"] / max(row["plain"], 1), row["ours"] / max(best, 1)
        rows.append((name, *(row[way] for way in ways), f"{over_plain:.2f}", f"{over_best:.2f}"))
        bars.append(Bar(f"{name}: ours / plain", "at least 3", f"{over_plain:.2f}", over_plain >= 3))
        bars.append(Bar(f"{name}: ours / best other", "at least 1.3", f"{over_best:.2f}", over_best >= 1.3))
    notes = (
        "blocks: checkpointing per block; layer inputs: vDNN's rule; everything: all saved is written.",
        "ours: with the least budget that its steps allow, found at plain training's size and scaled.",
    )
    columns = ("network", *ways, "ours / plain", "ours / best other")
    return Report(
        "How large can a batch be under a hard limit on memory?",
        (Table(columns, tuple(rows)),),
        tuple(bars),
        notes,
    )


if __name__ == "__main__":
    main(__doc__, run, flags=FLAGS, folders={"work": "keeps answers, so that a stopped run goes on"})
