"""Keyed permutations as functions of position: any slice of a shuffle, without the rest of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.data.randomness import derive_key, mix

Positions = NDArray[np.int64]

_TABLE_BELOW = 1 << 16
_ROUNDS = 6


class Permutation(Protocol):
    """A bijection of 0..count-1 that can be asked for any part of itself."""

    @property
    def count(self) -> int: ...

    def take(self, start: int, stop: int) -> Positions:
        """The elements at places start..stop-1."""
        ...


@dataclass(frozen=True)
class Identity:
    """No shuffling."""

    count: int

    def take(self, start: int, stop: int) -> Positions:
        return np.arange(start, stop, dtype=np.int64)


@dataclass(frozen=True)
class Shuffled:
    """A uniform-looking permutation of any size: a table for small counts, a cipher for large ones."""

    count: int
    key: int

    def take(self, start: int, stop: int) -> Positions:
        return self.at(np.arange(start, stop, dtype=np.int64))

    def at(self, places: Positions) -> Positions:
        """The elements at the given places."""
        if self.count < _TABLE_BELOW:
            return self._table[places]
        return _feistel(places.astype(np.uint64), self.count, self._round_keys).astype(np.int64)

    @cached_property
    def _round_keys(self) -> list[np.uint64]:
        return [np.uint64(derive_key(self.key, number)) for number in range(_ROUNDS)]

    @cached_property
    def _table(self) -> Positions:
        # six Feistel rounds are visibly uneven on small domains; sorting hashes is not. No two are equal,
        # since `mix` is a bijection, so the quickest sort gives the order that every other would
        hashes = mix(np.arange(self.count, dtype=np.uint64) ^ np.uint64(self.key))
        return np.argsort(hashes).astype(np.int64)


def _feistel(places: NDArray[np.uint64], count: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    """Encrypt within the smallest near-square that holds `count`, again for the few that land outside."""
    columns = math.isqrt(count - 1) + 1
    rows = -(-count // columns)
    done = _rounds(places, np.uint64(rows), np.uint64(columns), keys)
    outside = np.flatnonzero(done >= count)
    while len(outside):
        done[outside] = _rounds(done[outside], np.uint64(rows), np.uint64(columns), keys)
        outside = outside[done[outside] >= count]
    return done


def _rounds(
    places: NDArray[np.uint64], rows: np.uint64, columns: np.uint64, keys: list[np.uint64]
) -> NDArray[np.uint64]:
    row, column = places // columns, places % columns
    for number, key in enumerate(keys):
        # 32 bits of the hash, so that the sum cannot wrap around, which would let two places meet
        if number % 2:
            column = (column + (mix(row ^ key) >> np.uint64(32))) % columns
        else:
            row = (row + (mix(column ^ key) >> np.uint64(32))) % rows
    return row * columns + column


@dataclass(frozen=True, eq=False)
class Chosen:
    """Some places of a dataset, which ascend, in the order that a permutation of so many gives them."""

    inner: Permutation
    places: Positions

    @property
    def count(self) -> int:
        return self.inner.count

    def take(self, start: int, stop: int) -> Positions:
        return self.places[self.inner.take(start, stop)]


@dataclass(frozen=True)
class BlockShuffled:
    """Blocks in shuffled order, samples shuffled within a window of several blocks.

    For data that is read in blocks (Parquet row groups): a block is read once an epoch as long as
    a window fits into the cache. `starts` are the first positions of the blocks.
    """

    count: int
    key: int
    starts: Positions
    window: int = 16

    def take(self, start: int, stop: int) -> Positions:
        first = int(np.searchsorted(self._windows, start, side="right")) - 1
        parts = []
        while start < stop:
            end = min(stop, int(self._windows[first + 1]))
            parts.append(self._within(first, start, end))
            start, first = end, first + 1
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _within(self, window: int, start: int, stop: int) -> Positions:
        base, end = int(self._windows[window]), int(self._windows[window + 1])
        inner = Shuffled(end - base, derive_key(self.key, 1, window))
        places = base + inner.at(np.arange(start - base, stop - base, dtype=np.int64))
        block = np.searchsorted(self._ends, places, side="right")
        begins = np.concatenate(([0], self._ends[:-1]))
        return self.starts[self._blocks[block]] + places - begins[block]

    @cached_property
    def _blocks(self) -> Positions:
        return Shuffled(len(self.starts), derive_key(self.key, 0)).take(0, len(self.starts))

    @cached_property
    def _ends(self) -> Positions:
        lengths = np.diff(np.append(self.starts, self.count))
        return np.cumsum(lengths[self._blocks])

    @cached_property
    def _windows(self) -> Positions:
        bounds = self._ends[self.window - 1 :: self.window]
        bounds = bounds if len(bounds) and bounds[-1] == self.count else np.append(bounds, self.count)
        return np.concatenate(([0], bounds))
