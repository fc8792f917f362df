"""Are planted near-duplicates found and nothing else, and what does it cost at 1e4, 1e5 and 1e6 samples?

A tenth of the data is planted: files again at a JPEG quality of 30 to 90, at 0.5 to 0.9 of their size, or
without 2 to 5 % of their height and of their width, divided at random between both sides. All goes through
the engine as any dataset does. Photos of many classes are held to be of one, which is the harder case;
CIFAR-10 has its own labels.

A pair is two samples in one group. CIFAR-10 has near-duplicates of its own, so a pair of different pictures
need not be wrong: all their pixels are compared, in colour, at the best of all shifts by up to three pixels.
Only if they do not correlate by 0.75 is the pair counted as wrong. That line was drawn by eye, so the
precision is also shown for lines to both sides of it, and with all unplanted pairs counted as wrong.

Grouping is measured on made-up hashes, by the time and by the most memory that it holds a sample. Vectors
take some twenty times as long a sample, and stop at 1e5.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

import headwater as hw
from headwater.data.image import decode, read_header
from headwater.data.image.fingerprint import EDGE, VIEWS, WORDS, hash_thumbnails
from headwater.data.image.thumbnail import shrink
from headwater.engine.crew import Crew
from headwater.engine.fingerprints import Fingerprinting, fingerprint_chain
from headwater.plan.offload import Offload
from headwater.select.duplicates import group_hashes, group_vectors
from local_photos import shards
from measuring import Bar, Cell, Options, Report, Table, best, main, peak
from small_files import make_parquet

SHARE = 0.1
KINDS = ("re-encoded", "resized", "shifted")
RECALL, PRECISION = 0.95, 0.99
SAME = 0.75
"""Correlation of all pixels from which two pictures are the same to the judge."""
LINES = (0.7, SAME, 0.8, 0.85, 1.01)
"""Where else the line could be drawn; at the last, no two different pictures are the same."""
SHIFTS = range(-3, 4)
SIZES = (10_000, 100_000, 1_000_000)
CLASSES = (1, 1000)
WIDTH = 128
FLAT = 3.0
"""How much dearer a sample of one large class may be at the largest size."""
BYTES_FLAT = 1.2
TIMED = 100
TIMES = 3

Pixels = NDArray[np.uint8]
Ints = NDArray[np.int64]
Costs = dict[str, dict[int, dict[str, float]]]
"""By case and number of samples: microseconds and the most bytes held, per sample; the share found."""


@dataclass(frozen=True, eq=False)
class Planted:
    """Files with copies of some at the end: of which each is a picture, and what was done to it."""

    name: str
    data: hw.Dataset
    labels: Ints
    origins: Ints
    kinds: Ints
    """-1 for the files themselves."""


def change(file: bytes, kind: str, rng: np.random.Generator) -> bytes:
    """The same picture in another file."""
    pixels = decode(file, read_header(file))
    height, width = pixels.shape[:2]
    quality = 90
    if kind == "re-encoded":
        quality = int(rng.integers(30, 91))
    elif kind == "resized":
        factor = rng.uniform(0.5, 0.9)
        size = max(1, round(width * factor)), max(1, round(height * factor))
        pixels = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR))
    else:
        lost = [max(1, round(edge * rng.uniform(0.02, 0.05))) for edge in (height, width)]
        top, left = (int(rng.integers(0, edge + 1)) for edge in lost)
        pixels = pixels[top : top + height - lost[0], left : left + width - lost[1]]
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=quality))


def plant(path: Path, name: str, files: Sequence[bytes], labels: Ints) -> Planted:
    """A dataset of the files and of copies of some of them, at the end, all kinds in turn."""
    rng = np.random.default_rng(7)
    copied = rng.permutation(len(files))[: max(3, round(SHARE * len(files)))]
    kinds = np.arange(len(copied)) % len(KINDS)
    copies = [change(files[origin], KINDS[kind], rng) for origin, kind in zip(copied, kinds, strict=True)]
    images = [{"bytes": file, "path": None} for file in (*files, *copies)]
    kind_of = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({"image": pa.array(images, kind_of)}), path, row_group_size=500)
    return Planted(
        name,
        hw.open(path, progress=False),
        np.concatenate((labels, labels[copied])),
        np.concatenate((np.arange(len(files)), copied)),
        np.concatenate((np.full(len(files), -1), kinds)),
    )


def open_photos(folder: Path, options: Options) -> Planted:
    (folder / "tars").mkdir()
    for name, content in shards(options):
        (folder / "tars" / f"{name}.tar").write_bytes(content)
    data = hw.open(folder / "tars", progress=False)
    files = [bytes(file) for file in data.store.read(data.positions()[: 100 if options.quick else None])]
    return plant(folder / "photos.parquet", "photos", files, np.zeros(len(files), np.int64))


def open_cifar10(folder: Path, options: Options) -> Planted:
    path = options.data / "cifar10" / "train.parquet" if options.data else folder / "made.parquet"
    if not options.data:
        make_parquet(path, 2_000)
    data = hw.open(path, progress=False)
    places = data.positions()[: 2_000 if options.quick else None]
    files = [bytes(file) for file in data.store.read(places)]
    labels = np.asarray(data.labels, np.int64)[places]
    return plant(folder / "cifar10.parquet", "CIFAR-10", files, labels)


def fingerprint(planted: Planted) -> tuple[NDArray[np.uint64], float]:
    """Hashes by the one loop, and how many samples a second."""
    chain, store = fingerprint_chain(), planted.data.store
    made = Fingerprinting(lambda: store.reader(chain, (Offload(0),)), Crew(2, store.readers), chain)
    begin = time.perf_counter()
    batches = list(made.run(planted.data.positions(), planted.data.ids))
    seconds = time.perf_counter() - begin
    made.crew.close()
    assert not any(batch.failures for batch in batches)
    return np.concatenate([batch.hashes for batch in batches]), len(planted.labels) / seconds


@dataclass(frozen=True)
class Found:
    """What was found of what was planted, by kind; pairs in groups, and how the unplanted ones correlate."""

    recalls: tuple[float, ...]
    recall: float
    pairs: int
    unplanted: tuple[float, ...]
    rate: float
    grouping: float

    def wrong(self, line: float = SAME) -> int:
        return sum(one < line for one in self.unplanted)

    def precision(self, line: float = SAME) -> float:
        return 1 - self.wrong(line) / max(self.pairs, 1)


def find(planted: Planted) -> Found:
    hashes, rate = fingerprint(planted)
    begin = time.perf_counter()
    groups = group_hashes(hashes, planted.labels)
    seconds = time.perf_counter() - begin
    (copies,) = np.nonzero(planted.kinds >= 0)
    hit = (groups[copies] >= 0) & (groups[copies] == groups[planted.origins[copies]])
    left, right = pairs_of(groups)
    left, right = planted.origins[left], planted.origins[right]
    other = left != right
    return Found(
        tuple(float(hit[planted.kinds[copies] == kind].mean()) for kind in range(len(KINDS))),
        float(hit.mean()),
        len(left),
        tuple(judge(planted, left[other], right[other]).tolist()),
        rate,
        1e6 * seconds / len(groups),
    )


def pairs_of(groups: NDArray[np.int32]) -> tuple[Ints, Ints]:
    """All pairs of places in one group."""
    order = np.argsort(groups, kind="stable")
    order = order[groups[order] >= 0]
    left, right = [], []
    for step in range(1, int(np.bincount(groups[order], minlength=1).max())):
        same = groups[order[:-step]] == groups[order[step:]]
        left.append(order[:-step][same])
        right.append(order[step:][same])
    nothing = [np.empty(0, np.int64)]
    return np.concatenate(left or nothing), np.concatenate(right or nothing)


def judge(planted: Planted, left: Ints, right: Ints) -> NDArray[np.float64]:
    """The correlation of all pixels of each pair, at the best shift; 0 for pictures of unlike sizes."""
    found = np.zeros(len(left))
    for place, pair in enumerate(zip(left.tolist(), right.tolist(), strict=True)):
        one, other = (decode(file, read_header(file)) for file in planted.data.store.read(np.array(pair)))
        if one.shape == other.shape:
            shifts = product(SHIFTS, SHIFTS)
            found[place] = max(correlate(one, other, down, across) for down, across in shifts)
    return found


def correlate(one: Pixels, other: Pixels, down: int, across: int) -> float:
    """Of what both have in common if one is moved so far."""
    height, width = one.shape[:2]
    parts = []
    for image, sign in ((one, 1), (other, -1)):
        top, left = max(0, sign * down), max(0, sign * across)
        part = image[top : height + min(0, sign * down), left : width + min(0, sign * across)]
        parts.append(part - part.mean(axis=(0, 1)))
    squares = float(np.square(parts[0]).sum() * np.square(parts[1]).sum())
    return float((parts[0] * parts[1]).sum()) / squares**0.5 if squares else 0.0


def measure_parts(planted: Planted) -> dict[str, float]:
    """Milliseconds of CPU that a sample takes: its decode, its thumbnail, its hashes."""
    files = planted.data.store.read(planted.data.positions()[:TIMED])
    images = [decode(file, read_header(file)) for file in files]
    thumbnails = np.stack([shrink(image, EDGE)[:, :, 0] for image in images])
    calls = {
        "decode": lambda: [decode(file, read_header(file)) for file in files],
        "thumbnail": lambda: [shrink(image, EDGE) for image in images],
        "hashes": lambda: hash_thumbnails(thumbnails),
    }
    clock = time.process_time
    return {name: 1e3 * best(call, TIMES, clock) / len(files) for name, call in calls.items()}


def make_hashes(count: int, classes: int) -> tuple[NDArray[np.uint64], Ints, Ints]:
    """Random ones, of which a tenth are copies with 0 to 7 other bits in each word; labels, and origins."""
    rng = np.random.default_rng(3)
    own = count - round(SHARE * count)
    whole = rng.integers(0, 1 << 64, (own, 1, WORDS), dtype=np.uint64)
    hashes = np.concatenate((whole, flip(rng, np.repeat(whole, len(VIEWS) - 1, axis=1), 8)), axis=1)
    origins = np.concatenate((np.arange(own), rng.permutation(own)[: count - own]))
    hashes = hashes[origins]
    hashes[own:] = flip(rng, hashes[own:], 7, every=False)
    return hashes, rng.integers(0, classes, own)[origins], origins


def flip(
    rng: np.random.Generator, hashes: NDArray[np.uint64], bits: int, *, every: bool = True
) -> NDArray[np.uint64]:
    """Up to so many bits of every word otherwise, in some rows fewer unless in every one."""
    most = np.full(len(hashes), bits) if every else rng.integers(0, bits + 1, len(hashes))
    for number in range(bits):
        ones = np.uint64(1) << rng.integers(0, 64, hashes.shape, dtype=np.uint64)
        hashes = hashes ^ np.where((number < most)[:, None, None], ones, np.uint64(0))
    return hashes


def measure_hashes(count: int, classes: int) -> dict[str, float]:
    """What it takes to group made hashes, and what is found."""
    hashes, labels, origins = make_hashes(count, classes)
    return measure(partial(group_hashes, hashes, labels), origins, times=TIMES)


def measure_vectors(count: int) -> dict[str, float]:
    """The same of one class of features, a tenth of them copies with a cosine of about 0.98."""
    rng = np.random.default_rng(3)
    own = count - round(SHARE * count)
    origins = np.concatenate((np.arange(own), rng.permutation(own)[: count - own]))
    vectors = np.abs(rng.normal(size=(own, WIDTH))).astype(np.float32)[origins]
    vectors[own:] += rng.normal(0, 0.2, (count - own, WIDTH)).astype(np.float32)
    call = partial(group_vectors, vectors, np.zeros(count, np.int64))
    return measure(call, origins, times=1)


def measure(call: Callable[[], NDArray[np.int32]], origins: Ints, *, times: int) -> dict[str, float]:
    """Seconds, the most bytes per sample that were held, and the share of copies that are found."""
    groups = call()
    (copies,) = np.nonzero(origins != np.arange(len(origins)))
    same = (groups[copies] >= 0) & (groups[copies] == groups[origins[copies]])
    held = peak(call) / len(origins)
    return {"seconds": best(call, times), "bytes": held, "recall": float(same.mean())}


def planted_table(found: Mapping[str, Found], planted: Mapping[str, Planted]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, one in found.items():
        count = int((planted[name].kinds >= 0).sum())
        recalls = (f"{recall:.2%}" for recall in (*one.recalls, one.recall))
        pairs = (one.pairs, len(one.unplanted), one.wrong())
        rows.append((name, len(planted[name].labels), count, *recalls, *pairs, f"{one.precision():.2%}"))
    columns = ("data", "samples", "planted", *KINDS, "all found", "pairs", "unplanted", "wrong", "precision")
    return Table(columns, tuple(rows))


def judge_table(found: Mapping[str, Found]) -> Table:
    """The precision by where the line is drawn."""
    rows = tuple(
        (name, *(f"{one.precision(line):.2%} ({one.wrong(line):,} wrong)" for line in LINES))
        for name, one in found.items()
    )
    lines = (f"same from {line:g} on" for line in LINES[:-1])
    return Table(("precision", *lines, "all unplanted wrong"), rows)


def cost_table(found: Mapping[str, Found], parts: Mapping[str, Mapping[str, float]]) -> Table:
    rows = tuple(
        (name, *(f"{ms:.3f}" for ms in parts[name].values()), f"{one.rate:.0f}", f"{one.grouping:.1f}")
        for name, one in found.items()
    )
    columns = ("data", "decode (ms)", "thumbnail (ms)", "hashes (ms)", "samples/s", "grouping (us/sample)")
    return Table(columns, rows)


def measure_scale(sizes: Sequence[int], options: Options) -> Costs:
    """Grouping of synthetic hashes and vectors."""
    calls: dict[str, Callable[[int], dict[str, float]]] = {
        f"hashes, {n:,} class{'es' * (n > 1)}": partial(measure_hashes, classes=n) for n in CLASSES
    }
    found = {name: {count: call(count) for count in sizes} for name, call in calls.items()}
    some = sizes[: 1 if options.quick else 2]
    found[f"vectors of {WIDTH}, 1 class"] = {count: measure_vectors(count) for count in some}
    return {
        name: {n: {**one, "us": 1e6 * one["seconds"] / n} for n, one in by_size.items()}
        for name, by_size in found.items()
    }


def scale_table(costs: Costs) -> Table:
    rows = tuple(
        (name, n, f"{one['us']:.1f}", f"{one['bytes']:.0f}", f"{one['recall']:.2%}")
        for name, by_size in costs.items()
        for n, one in by_size.items()
    )
    columns = ("grouping", "samples", "us/sample", "most bytes/sample", "planted found")
    return Table(columns, rows)


def scale_bars(costs: Costs) -> Iterator[Bar]:
    """The largest size against the least of the smaller ones: time, and bytes."""
    hashes = [name for name in costs if name.startswith("hashes")]
    judged = [(name, *what) for name in hashes for what in (("us", FLAT), ("bytes", BYTES_FLAT))]
    for name, what, limit in judged:
        *fewer, largest = costs[name]
        factor = costs[name][largest][what] / min(costs[name][count][what] for count in fewer)
        title = {"us": "seconds", "bytes": "most bytes"}[what]
        said = f"{name}: {title} per sample at {largest:.0e} over the least at fewer"
        yield Bar(said, f"under {limit:g}x", f"{factor:.2f}x", factor < limit)


def bars_of(found: Mapping[str, Found], costs: Costs) -> list[Bar]:
    bars = []
    for name, one in found.items():
        bars.append(
            Bar(f"{name}: found", f"at least {RECALL:.0%}", f"{one.recall:.2%}", one.recall >= RECALL)
        )
        right = one.precision()
        bars.append(
            Bar(f"{name}: precision", f"at least {PRECISION:.0%}", f"{right:.2%}", right >= PRECISION)
        )
    return [*bars, *scale_bars(costs)]


def run(folder: Path, options: Options) -> Report:
    planted = {one.name: one for one in (open_photos(folder, options), open_cifar10(folder, options))}
    found = {name: find(one) for name, one in planted.items()}
    parts = {name: measure_parts(one) for name, one in planted.items()}
    costs = measure_scale(SIZES[:2] if options.quick else SIZES, options)
    size = 8 * len(VIEWS) * WORDS
    return Report(
        "planted near-duplicates: found, and at what cost",
        (planted_table(found, planted), judge_table(found), cost_table(found, parts), scale_table(costs)),
        tuple(bars_of(found, costs)),
        (f"a fingerprint has {size} bytes; a thumbnail, where a store makes it for another, {EDGE * EDGE}",),
        raw={"costs": {name: {str(n): one for n, one in by_size.items()} for name, by_size in costs.items()}},
    )


if __name__ == "__main__":
    main(__doc__, run)
