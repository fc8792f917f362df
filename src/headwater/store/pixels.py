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
from headwater.engine.fetching import Fetched, Wanted, fetch_files
from headwater.engine.meter import Meter
from headwater.engine.run import Bounds, Failure, Task, run
from headwater.store.base import Store

_LOOKS = (
    4096,
    1 << 17,
    None,
)  # bytes; a camera's thumbnail can stand before the header, and None is the whole
_BLOCK = 256
_BYTES_AHEAD = 1 << 28


class _Heads:
    """Reads the beginning of files instead of the whole."""

    def __init__(self, store: Store, length: int | None) -> None:
        self._store = store
        self._length = length

    def sizes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        sizes = self._store.sizes(positions)
        return sizes if self._length is None else np.minimum(sizes, self._length)

    def read(self, positions: NDArray[np.int64]) -> Sequence[Any]:
        if self._length is None:
            return self._store.read(positions)
        return self._store.read_heads(positions, self._length)

    def read_fields(self, positions: NDArray[np.int64]) -> Mapping[str, Sequence[object]]:
        return {}

    def fetch(self, wanted: Wanted) -> Fetched:
        return fetch_files(self, wanted.positions)

    def abandon(self) -> None:
        """Heads are small: what is under way ends soon."""

    def key(self, position: int) -> str:
        return self._store.key(position)


class _SizeSink:
    """Turns heads into sizes, a lot at a time, and lets them go."""

    batch_bytes = 16 * _BLOCK

    def open(self, task: Task) -> _SizeTarget:
        return _SizeTarget(len(task.ids))


class _SizeTarget:
    def __init__(self, count: int) -> None:
        self._heads: dict[int, Any] = {}
        self._sizes = np.zeros((count, 2), np.int64)

    def put(self, slot: int, image: Image) -> None:
        self._heads[slot] = image

    def put_fields(self, slots: Sequence[int], fields: Mapping[str, Sequence[object]]) -> None:
        return None

    def settle(self, begin: int, end: int) -> None:
        slots = [slot for slot in range(begin, end) if slot in self._heads]
        if slots:
            self._sizes[slots] = read_sizes([self._heads.pop(slot) for slot in slots])

    def finish(self, failures: Sequence[Failure]) -> Sizes:
        return self._sizes


def read_pixel_sizes(store: Store, positions: NDArray[np.int64], *, progress: bool | None) -> Sizes:
    """Sizes at these positions; where a header lies further on than one look, the next looks further."""
    sizes = np.zeros((len(positions), 2), np.int64)
    unknown = np.arange(len(positions))
    for length in _LOOKS:
        sizes[unknown] = _scan(_Heads(store, length), store, positions[unknown], progress)
        unknown = unknown[sizes[unknown, 0] == 0]
        if not len(unknown):
            break
    return sizes


def _scan(heads: _Heads, store: Store, positions: NDArray[np.int64], progress: bool | None) -> Sizes:
    crew = Crew(available_cores(), store.readers, patient=store.remote)
    blocks = range(0, len(positions), _BLOCK)
    tasks = (_task(store, heads, positions[begin : begin + _BLOCK]) for begin in blocks)
    try:
        found: Iterator[Sizes] = run(
            tasks,
            heads,
            chain=Chain(Pipeline(())),
            sink=_SizeSink(),
            crew=crew,
            bounds=Bounds(bytes=_BYTES_AHEAD, lot=16),
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


def _task(store: Store, heads: _Heads, positions: NDArray[np.int64]) -> Task:
    return Task(positions, store.index.ids[positions], bytes_raw=int(heads.sizes(positions).sum()))
