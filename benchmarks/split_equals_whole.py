"""Does a chain that is cut anywhere give the bytes of the whole chain?

Every sample goes through every cut of its pipelines in several epochs: the store's part, then the loader's
part, with nothing between them but JSON (the pipeline) and bytes with a shape (the sample).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg
from numpy.typing import NDArray

import headwater as hw
from headwater import transforms as T
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.data.synthetic import write_photos
from headwater.engine.chain import Chain
from measuring import Bar, Options, Report, Table, main

EPOCHS = 3
SEED = 17
SMALL = 5_000
_LOT = 50

_FLOATS = (T.ToDtype("float32", scale=True), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
PHOTO_PIPELINES = {
    "training": T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *_FLOATS]),
    "validation": T.Compose([T.Resize(256), T.CenterCrop(224), *_FLOATS]),
}
SMALL_PIPELINES = {"small": T.Compose([T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), *_FLOATS])}
PIPELINES = PHOTO_PIPELINES | SMALL_PIPELINES


@dataclass
class Lot:
    """Samples of one epoch on their way through a chain; a failure is an error of the benchmark."""

    ids: NDArray[np.int64]
    epoch: int
    made: dict[int, Any] = field(default_factory=dict)

    def emit(self, place: int, image: Any) -> None:
        self.made[place] = image

    def fail(self, place: int, stage: str, error: Exception) -> None:
        raise RuntimeError(f"sample {self.ids[place]} failed at {stage}") from error


@dataclass(frozen=True)
class Count:
    comparisons: int = 0
    bytes_compared: int = 0
    differing_bytes: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.comparisons + other.comparisons,
            self.bytes_compared + other.bytes_compared,
            self.differing_bytes + other.differing_bytes,
        )


def run_chain(pipeline: Pipeline, values: Sequence[Any], ids: NDArray[np.int64], epoch: int) -> list[Any]:
    lot = Lot(ids, epoch)
    Chain(pipeline, SEED).run(values, lot)
    return [lot.made[place] for place in range(len(values))]


def sent(pipeline: Pipeline) -> Pipeline:
    """The pipeline as the other side would have it: by names and parameters in JSON."""
    spec = json.loads(json.dumps(pipeline.spec()))
    return Pipeline.from_spec(spec, catalogue(), offset=pipeline.offset)


def crossed(value: Any) -> Any:
    """A sample as the other side would have it: a file is its bytes, an image bytes, shape and type."""
    if not isinstance(value, np.ndarray) or value.ndim != 3:
        return bytes(value)
    return np.frombuffer(value.tobytes(), value.dtype).reshape(value.shape)


def compare(whole: Sequence[Any], split: Sequence[Any]) -> Count:
    different = size = 0
    for one, other in zip(whole, split, strict=True):
        size += one.nbytes
        if one.shape != other.shape or one.dtype != other.dtype:
            different += max(one.nbytes, other.nbytes)
        else:
            pair = [np.ascontiguousarray(image).view(np.uint8) for image in (one, other)]
            different += int(np.count_nonzero(pair[0] != pair[1]))
    return Count(len(whole), size, different)


def check_lot(pipeline: Pipeline, data: hw.Dataset, positions: NDArray[np.int64], epochs: int) -> Count:
    files, ids, count = data.store.read(positions), data.index.ids[positions], Count()
    for epoch in range(epochs):
        whole = run_chain(pipeline, files, ids, epoch)
        for cut in range(len(pipeline) + 1):
            prefix, suffix = (sent(part) for part in pipeline.cut(cut))
            half = [crossed(value) for value in run_chain(prefix, files, ids, epoch)]
            count += compare(whole, run_chain(suffix, half, ids, epoch))
    return count


def check(pipeline: Pipeline, data: hw.Dataset, *, most: int, epochs: int) -> Count:
    positions = data.positions()[:most]
    lots = np.array_split(positions, max(1, len(positions) // _LOT))
    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(lambda lot: check_lot(pipeline, data, lot, epochs), lots), Count())


def open_photos(folder: Path, options: Options) -> hw.Dataset:
    if options.data:
        return hw.open(options.data / "imagenet_sample", progress=False)
    write_photos(folder / "photos", count=50 if options.quick else 700)
    return hw.open(folder / "photos", progress=False)


def open_small(folder: Path, options: Options) -> hw.Dataset:
    if options.data:
        return hw.open(options.data / "cifar10" / "train.parquet", progress=False)
    noise = np.random.default_rng(0).integers(0, 256, (SMALL, 8, 8, 3), dtype=np.uint8)
    files = [simplejpeg.encode_jpeg(image) for image in noise.repeat(4, axis=1).repeat(4, axis=2)]
    images = pa.array([{"bytes": file, "path": None} for file in files])
    pq.write_table(pa.table({"image": images, "label": np.arange(SMALL) % 10}), folder / "small.parquet")
    return hw.open(folder / "small.parquet", progress=False)


def run(folder: Path, options: Options) -> Report:
    epochs = 1 if options.quick else EPOCHS
    photos, small = open_photos(folder, options), open_small(folder, options)
    rows, total = [], Count()
    jobs = [(photos, name, 50 if options.quick else len(photos)) for name in PHOTO_PIPELINES]
    jobs += [(small, name, 200 if options.quick else SMALL) for name in SMALL_PIPELINES]
    for data, name, most in jobs:
        pipeline = PIPELINES[name]
        count = check(pipeline, data, most=most, epochs=epochs)
        shape = (min(most, len(data)), len(pipeline) + 1, epochs)
        rows.append((name, *shape, count.comparisons, count.bytes_compared, count.differing_bytes))
        total += count
    columns = ("pipeline", "samples", "cuts", "epochs", "comparisons", "bytes compared", "differing bytes")
    return Report(
        "split equals whole: every cut, bytes and JSON between the parts",
        (Table(columns, tuple(rows)),),
        (Bar("differing bytes", "0", str(total.differing_bytes), not total.differing_bytes),),
        tuple(f"{name}: {pipeline}" for name, pipeline in PIPELINES.items()),
    )


if __name__ == "__main__":
    main(__doc__, run)
