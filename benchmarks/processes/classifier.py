"""Photos to labels in a process of its own, by torch or by the engine.

    classifier.py SETTINGS      SETTINGS is JSON, see `Settings`

Answers "measure SECONDS" on standard input with a line of JSON: photo after photo, again from the first,
until the seconds are over and the last batch is done.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headwater as hw
from headwater.data import codecs
from headwater.data.pipeline import Pipeline
from headwater.engine.chain import Chain
from headwater.loader.threads import use_one_core
from headwater.models.presets import lite0_steps, load_lite0
from headwater.models.registry import Registry
from headwater.models.runtime import Engine

CODEC = "zstd"
_AHEAD = 2  # batches that are made while one is classified

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Settings:
    """`engine` is torch or a version in `registry`; `source` says what a photo is before each pass.

    memory: pixels, all in one array; files: JPEG files of `photos`, a dataset; tensors: packed pixels.
    """

    engine: str
    registry: str
    pixels: str
    photos: str
    source: str = "memory"
    pipelined: bool = True
    batch: int = 32
    threads: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))


class Torch:
    """EfficientNet-Lite0 as torch runs it, in channels_last."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._torch = torch
        self._model = load_lite0().to(memory_format=torch.channels_last)

    def classify(self, pixels: Pixels) -> Any:
        with self._torch.inference_mode():
            # Strided as it is, the batch is channels_last already.
            batch = self._torch.from_numpy(pixels).permute(0, 3, 1, 2).float().sub_(127).div_(128)
            return self._model(batch).softmax(1).max(1)


@dataclass
class Lot:
    ids: NDArray[np.int64]
    epoch: int = 0
    made: list[Any] = field(default_factory=list)

    def emit(self, place: int, image: Any) -> None:
        self.made.append(image)

    def fail(self, place: int, stage: str, error: Exception) -> None:
        raise RuntimeError(f"sample {self.ids[place]} failed at {stage}") from error


def from_files(photos: str, steps: Pipeline) -> Callable[[int], Pixels]:
    data, chain = hw.open(photos, progress=False), Chain(steps.samplewise)

    def load(place: int) -> Pixels:
        where = np.array([place])
        lot = Lot(data.index.ids[where])
        chain.run(data.store.read(where), lot)
        return lot.made[0]

    return load


def from_tensors(pixels: Pixels) -> Callable[[int], Pixels]:
    packed = [bytes(codecs.encode(CODEC, image)) for image in pixels]
    height, width, channels = pixels.shape[1:]
    return lambda place: codecs.decode(CODEC, packed[place], (height, width, channels))


def in_turn(load: Callable[[int], Pixels], batches: Iterable[Sequence[int]]) -> Iterator[Pixels]:
    """Nothing overlaps: a batch is made when it is asked for."""
    for places in batches:
        yield np.stack([load(place) for place in places])


def ahead(
    load: Callable[[int], Pixels], batches: Iterator[Sequence[int]], pool: ThreadPoolExecutor
) -> Iterator[Pixels]:
    """Batches in order, while the pool makes the next ones."""
    waiting = [[pool.submit(load, place) for place in places] for places in itertools.islice(batches, _AHEAD)]
    try:
        for places in batches:
            made = np.stack([future.result() for future in waiting.pop(0)])
            waiting.append([pool.submit(load, place) for place in places])
            yield made
    finally:
        # What is under way would disturb whoever measures next.
        under_way = [future for futures in waiting for future in futures if not future.cancel()]
        wait(under_way)


def make_stream(settings: Settings) -> Callable[[], Iterator[Pixels]]:
    """What begins to give batches of pixels, for ever."""
    pixels: Pixels = np.load(settings.pixels)
    starts = range(0, len(pixels), settings.batch)
    places = [range(start, min(start + settings.batch, len(pixels))) for start in starts]
    if settings.source == "memory":
        return lambda: (pixels[some.start : some.stop] for some in itertools.cycle(places))
    load = from_files(settings.photos, lite0_steps()) if settings.source == "files" else from_tensors(pixels)
    if not settings.pipelined:
        return lambda: in_turn(load, itertools.cycle(places))
    pool = ThreadPoolExecutor(settings.threads, initializer=use_one_core)
    return lambda: ahead(load, itertools.cycle(places), pool)


def answer(settings: Settings) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if settings.engine == "torch":
        engine: Any = Torch(settings.threads)
    else:
        engine = Engine(Registry(settings.registry).get(settings.engine), threads=settings.threads)
    stream = make_stream(settings)
    print(json.dumps({"ready": 1}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(engine, stream, float(line.split()[1]))), file=answers, flush=True)


def measure(engine: Any, stream: Callable[[], Iterator[Pixels]], seconds: float) -> dict[str, float]:
    begin, images = time.perf_counter(), 0
    with closing(stream()) as batches:  # type: ignore[type-var]
        for pixels in batches:
            engine.classify(pixels)
            images += len(pixels)
            if (spent := time.perf_counter() - begin) >= seconds:
                break
    return {"images": images, "seconds": spent}


if __name__ == "__main__":
    answer(Settings(**json.loads(sys.argv[1])))
