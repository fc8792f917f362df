"""What a fine-tuning will take, measured on a few samples before it begins."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from headwater.data.pipeline import Pipeline
from headwater.store.dataset import Dataset
from headwater.tune.head import Batch, Head
from headwater.tune.inflow import Source
from headwater.tune.runs import LOT, Places

SAMPLES = 3 * LOT
"""How many samples are made into features to see how long that takes; the first lot only warms up."""

_LEAST = 1e-9
_BATCHES = 8


def seconds_per_image(source: Source, dataset: Dataset, steps: Pipeline) -> float:
    """From storage to features, with as many samples at once as there will be, spread over the dataset."""
    places = np.unique(np.linspace(0, len(dataset) - 1, min(SAMPLES, len(dataset))).astype(np.int64))
    first = _time(source, dataset, places[:LOT], steps)
    return _time(source, dataset, places[LOT:], steps) if len(places) > LOT else first


def _time(source: Source, dataset: Dataset, places: Places, steps: Pipeline) -> float:
    positions = dataset.positions(places)
    begun = time.perf_counter()
    for _ in source.run(positions, dataset.index.ids[positions], steps=steps, variant=0):
        pass
    return max(_LEAST, (time.perf_counter() - begun) / len(places))


def seconds_per_row(head: Head, *, width: int, classes: int, batch_size: int) -> float:
    """Of one pass of training, from features in half precision on; `head` is changed by it."""
    with torch.random.fork_rng(devices=()):  # a head that draws leaves the user's generator alone
        head.train(_noise(width, classes, batch_size, 1), rate=1e-3)
        begun = time.perf_counter()
        head.train(_noise(width, classes, batch_size, _BATCHES), rate=1e-3)
        seconds = time.perf_counter() - begun
    return max(_LEAST, seconds / (_BATCHES * batch_size))


def _noise(width: int, classes: int, batch_size: int, count: int) -> Iterator[Batch]:
    """Batches that are gathered row by row, as those of training are."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((2 * batch_size, width), np.float32).astype(np.float16)
    targets = torch.from_numpy(rng.integers(0, classes, batch_size))
    for _ in range(count):
        rows = rng.integers(0, len(features), batch_size)
        yield torch.from_numpy(features[rows]).float(), targets
