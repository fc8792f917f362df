"""Loaders measured against each other: interleaved rounds over the same samples.

Single figures swing on a shared machine, so contenders take turns, and what is compared is the ratio within a
round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headwater.data.pipeline import Pipeline
from headwater.data.steps.base import Image
from headwater.engine.chain import Chain
from headwater.loader import DataLoader
from headwater.store import Dataset

Contender = Callable[[int], int]
"""Serves all samples once, as the given epoch; returns how many it served."""

_READ_AT_ONCE = 64


@dataclass(frozen=True)
class Spread:
    """The middle of several rounds, and how far they lie apart."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(float(np.median(values)), min(values), max(values))


def race(contenders: Mapping[str, Contender], rounds: int) -> dict[str, list[float]]:
    """Images per second of each contender in each round, after one round that does not count."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, serve in contenders.items():
            begin = time.perf_counter()
            served = serve(number)
            if number:
                rates[name].append(served / (time.perf_counter() - begin))
    return rates


def headwater(loader: DataLoader) -> Contender:
    """The loader under test."""

    def serve(epoch: int) -> int:
        loader.set_epoch(epoch)
        return sum(len(batch) for batch in loader)

    return serve


def bare_read(dataset: Dataset) -> Contender:
    """Files read and dropped, by as many threads as the loader reads with: what the storage can give."""
    positions = dataset.positions()
    parts = [positions[begin : begin + _READ_AT_ONCE] for begin in range(0, len(positions), _READ_AT_ONCE)]

    def serve(epoch: int) -> int:
        with ThreadPoolExecutor(dataset.store.readers) as pool:
            return sum(pool.map(lambda part: len(dataset.store.read(part)), parts))

    return serve


def torch_loader(dataset: Dataset, pipeline: Pipeline, *, batch_size: int, workers: int) -> Contender:
    """torch's DataLoader over the same files, decoder and steps, at its best.

    Workers are kept between rounds and fetch a batch at a time, so that they draw in bulk too. Every
    step runs per sample, as it does for torch's users.
    """
    loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
        MapStyle(dataset, pipeline),
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return lambda epoch: sum(len(images) for images, _ in loader)


class MapStyle(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """A dataset as torch wants it, run by the engine's chain; every epoch draws what epoch 0 draws."""

    def __init__(self, dataset: Dataset, pipeline: Pipeline) -> None:
        self._dataset, self._chain = dataset, Chain(pipeline)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return self.__getitems__([place])[0]

    def __getitems__(self, places: Sequence[int]) -> list[tuple[torch.Tensor, int]]:
        positions = self._dataset.positions(np.asarray(places, np.int64))
        index = self._dataset.index
        made = Made(index.ids[positions])
        self._chain.run(self._dataset.store.read(positions), made)
        tensors = (torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))) for image in made.images)
        return list(zip(tensors, index.labels[positions].tolist(), strict=True))


@dataclass(frozen=True)
class Made:
    """A chunk of samples that must all succeed."""

    ids: NDArray[np.int64]
    epoch: int = 0
    images: list[Image] = field(default_factory=list)

    def emit(self, place: int, image: Image) -> None:
        self.images.append(image)

    def fail(self, place: int, stage: str, error: Exception) -> None:
        raise error
