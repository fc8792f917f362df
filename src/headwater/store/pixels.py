"""Pixel sizes from the first bytes of files, when somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.image import read_sizes
from headwater.data.pipeline import Pipeline
from headwater.data.progress import bar
from headwater.data.steps.base import Image, Sizes
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew, available_cores
from headwater.engine.meter import Meter
from headwater.engine.run import Bounds, Failure, Task, run
from headwater.store.local import LocalStore

_HEAD_BYTES = 4096
_BLOCK = 1024


class _Heads:
    """Reads the beginning of files instead of the whole."""

    def __init__(self, store: LocalStore, length: int | None) -> None:
        self._store = store
        self._length = length

    def read(self, positions: NDArray[np.int64]) -> Sequence[Any]:
        if self._length is None:
            return self._store.read(positions)
        return self._store.source.read_heads(positions, self._length)

    def read_fields(self, positions: NDArray[np.int64]) -> Mapping[str, Sequence[object]]:
        return {}

    def key(self, position: int) -> str:
        return self._store.key(position)


class _SizeSink:
    """Collects the heads of a block and answers with their sizes."""

    batch_bytes = _HEAD_BYTES * _BLOCK

    def open(self, task: Task) -> _SizeSink:
        made = _SizeSink()
        made._heads = [b""] * len(task.ids)
        return made

    _heads: list[Any]

    def put(self, slot: int, image: Image) -> None:
        self._heads[slot] = image

    def put_fields(self, begin: int, fields: Mapping[str, Sequence[object]]) -> None:
        return None

    def settle(self, begin: int, end: int) -> None:
        return None

    def finish(self, failures: Sequence[Failure]) -> Sizes:
        return read_sizes(self._heads)


def read_pixel_sizes(store: LocalStore, positions: NDArray[np.int64], *, progress: bool | None) -> Sizes:
    """Sizes at these positions; files whose header is longer than the first look are read again, whole."""
    sizes = _scan(_Heads(store, _HEAD_BYTES), store, positions, progress)
    unknown = np.flatnonzero(sizes[:, 0] == 0)
    if len(unknown):
        sizes[unknown] = _scan(_Heads(store, None), store, positions[unknown], progress)
    return sizes


def _scan(heads: _Heads, store: LocalStore, positions: NDArray[np.int64], progress: bool | None) -> Sizes:
    crew = Crew(available_cores(), store.readers)
    blocks = range(0, len(positions), _BLOCK)
    tasks = (_task(store, positions[begin : begin + _BLOCK]) for begin in blocks)
    try:
        found: Iterator[Sizes] = run(
            tasks,
            heads,
            chain=Chain(Pipeline(())),
            sink=_SizeSink(),
            crew=crew,
            bounds=Bounds(),
            meter=Meter(),
        )
        parts = []
        with bar("pixel sizes", len(blocks), wanted=progress) as advance:
            for part in found:
                parts.append(part)
                advance(1)
        return np.concatenate(parts) if parts else np.empty((0, 2), np.int64)
    finally:
        crew.close()


def _task(store: LocalStore, positions: NDArray[np.int64]) -> Task:
    return Task(positions, store.index.ids[positions])
