"""Photos to labels in a process of its own, by torch or by the parts that a store is made of.

    classifier.py SETTINGS      SETTINGS is JSON, see `Settings`

Answers "measure SECONDS" on standard input with a line of JSON: photo after photo, again from the first,
until the seconds are over. The first batch does not count: nothing overlaps with it.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import headwater as hw
from headwater.data.pipeline import Pipeline
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew
from headwater.engine.fetching import Fetched, Reader, Wanted
from headwater.engine.inference import Extraction
from headwater.loader.threads import use_one_core
from headwater.models.presets import lite0_steps, load_lite0
from headwater.models.registry import Registry
from headwater.models.runtime import Engine
from headwater.plan.offload import Offload
from headwater.store.cabinet import Cabinet
from headwater.store.features import Pictures

BATCH = 32
"""Images that torch is given at once, if nothing else is said."""
CORES = len(os.sched_getaffinity(0))
_MOST_BYTES = 1 << 32
_FEWEST = 2  # batches of a measurement
_LOOK = 64  # images from memory between two looks at the clock

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Settings:
    """`engine` is torch or a version in `registry`; `source` says what a photo is before each pass.

    memory: pixels, all in one array; files: JPEG files of `photos`, a dataset; tensors: images that were
    kept, as a store keeps them. `overlap` lets reading, steps and layers go on at once, or several batches
    of pixels with a core each; `at_once` is how many images a layer sees together.
    """

    engine: str
    registry: str
    pixels: str
    photos: str
    source: str = "memory"
    overlap: bool = True
    at_once: int = BATCH


class Network(Protocol):
    """What an `Extractor` is, and what labels are made of its features."""

    width: int

    def features(self, images: Pixels) -> Floats: ...
    def logits(self, features: NDArray[Any]) -> Floats: ...


class Torch:
    """EfficientNet-Lite0 as torch runs it, in channels_last: all layers, so that nothing is left to do."""

    width = 1000

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._torch = torch
        self._model = load_lite0().to(memory_format=torch.channels_last)

    def features(self, images: Pixels) -> Floats:
        with self._torch.inference_mode():
            # Strided as it is, the batch is channels_last already.
            batch = self._torch.from_numpy(images).permute(0, 3, 1, 2).float().sub_(127).div_(128)
            logits: Floats = self._model(batch).numpy()
            return logits

    def logits(self, features: NDArray[Any]) -> Floats:
        return features


@dataclass
class Pieces:
    """A network that sees no more than so many images together."""

    network: Network
    at_once: int

    @property
    def width(self) -> int:
        return self.network.width

    def features(self, images: Pixels) -> Floats:
        starts = range(0, len(images), self.at_once)
        return np.concatenate([self.network.features(images[at : at + self.at_once]) for at in starts])


class Kept:
    """Images that are kept as a store keeps them."""

    def __init__(self, pictures: Pictures) -> None:
        self._pictures = pictures

    def sizes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.zeros(len(positions), np.int64)

    def fetch(self, wanted: Wanted) -> Fetched:
        found = self._pictures.get(wanted.ids)
        return Fetched([found[place] for place in range(len(wanted.ids))])

    def key(self, position: int) -> str:
        return str(position)

    def abandon(self) -> None:
        """What is under way ends soon."""


class FromMemory:
    """Pixels that are there: all cores on one batch, or with `overlap` a core on each of several."""

    def __init__(self, settings: Settings, network: Network) -> None:
        self._pixels: Pixels = np.load(settings.pixels)
        self._network, self._at_once = network, settings.at_once
        self._together = CORES if settings.overlap else 1
        self._pool = ThreadPoolExecutor(self._together)

    def labels(self) -> Iterator[int]:
        """So many are made, again and again."""
        count, size = len(self._pixels), self._at_once
        starts = itertools.cycle(range(0, count, size))
        while True:
            parts = [self._pixels[at : at + size] for at in itertools.islice(starts, _LOOK // size)]
            found = list(self._pool.map(self._network.features, parts))
            yield sum(len(self._network.logits(part).argmax(axis=1)) for part in found)


class FromStore:
    """The loop that a store's jobs run, over files or over images that are kept."""

    def __init__(self, settings: Settings, network: Network) -> None:
        self._data = hw.open(settings.photos, progress=False)
        self._folder = tempfile.TemporaryDirectory(prefix="headwater-kept-")
        self._network, self._overlap = network, settings.overlap
        self._layers = Pieces(network, settings.at_once)
        self._steps = lite0_steps().samplewise
        self._kept = self._keep(np.load(settings.pixels)) if settings.source == "tensors" else None

    def _keep(self, pixels: Pixels) -> Pictures:
        folder = Path(self._folder.name)
        index = self._data.index
        kept = Pictures(
            Cabinet(folder, most_bytes=_MOST_BYTES), index, dataset="photos", pipeline=self._steps
        )
        kept.put(self._data.positions(), list(pixels))
        return kept

    def _reader(self) -> Reader:
        if self._kept is not None:
            return Kept(self._kept)
        return self._data.store.reader(Chain(self._steps), (Offload(0),))

    def labels(self) -> Iterator[int]:
        """So many are made, again and again."""
        crew = Crew(CORES if self._overlap else 0, self._data.store.readers, prepare=use_one_core)
        chain = Chain(self._steps if self._kept is None else Pipeline(()))
        extraction = Extraction(self._reader, chain, self._layers, crew)
        positions = np.tile(self._data.positions(), 1000)
        batches = extraction.run(positions, self._data.index.ids[positions])
        try:
            for batch in batches:
                assert not batch.failures, batch.failures
                yield len(self._network.logits(batch.features).argmax(axis=1))
        finally:
            # What is under way would disturb whoever measures next.
            crew.close()
            crew.read.shutdown(wait=True)
            crew.step.shutdown(wait=True)


def make_network(settings: Settings) -> Network:
    """One core for each of several batches; torch has all of them where it sees one batch at a time."""
    if settings.engine == "torch":
        return Torch(1 if settings.overlap else CORES)
    return Engine(Registry(settings.registry).get(settings.engine), threads=1)


def measure(source: FromMemory | FromStore, seconds: float) -> dict[str, float]:
    with closing(source.labels()) as made:  # type: ignore[type-var]
        next(made)
        begin, images, spent = time.perf_counter(), 0, 0.0
        for number in itertools.count(1):
            images += next(made)
            spent = time.perf_counter() - begin
            if spent >= seconds and number >= _FEWEST:
                break
    return {"images": images, "seconds": spent}


def answer(settings: Settings) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    network = make_network(settings)
    source = (FromMemory if settings.source == "memory" else FromStore)(settings, network)
    print(json.dumps({"ready": 1}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(source, float(line.split()[1]))), file=answers, flush=True)


if __name__ == "__main__":
    answer(Settings(**json.loads(sys.argv[1])))
