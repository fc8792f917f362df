"""Which samples are worth their room: those of the highest value per byte, as many as fit.

A knapsack by density, whose outcome is one number: a sample is held if its key is at least that. So admission
is one comparison, as in iCache (HPCA'23), where a sample must beat the least important one that is held:
there the importances of the next epoch go into a second heap, here a pass over all samples finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.index import Index
from headwater.data.randomness import mix
from headwater.engine.cache.entry import LENGTH
from headwater.engine.cache.table import OVERHEAD, Positions, Table
from headwater.errors import WrongUse

Keys = NDArray[np.uint64]
Doubles = NDArray[np.float64]
Marks = NDArray[np.bool_]

_NEVER = 1 << 63  # more than any key
_BITS = 16
_BINS = 1 << _BITS
_CLOSE = 1 << 10  # the room is filled to such a part of it
_BLOCK = 1 << 18
_TELLING = 32  # entries that tell how much smaller than files they are
_DRIFT = 0.05  # of that, above which worth is reckoned anew
_LEAST_RATIO = 1e-3


def rank(values: NDArray[np.floating[Any]], sizes: Doubles, positions: Positions) -> Keys:
    """A key for each sample: higher for more value per byte, of equals by a hash of the position.

    What has no value (0, less, or NaN) has the key 0.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        dense = (values / sizes).astype(np.float32)
    dense = np.nan_to_num(np.maximum(dense, 0), nan=0.0)  # infinity becomes the largest number
    ties = mix(positions.astype(np.uint64)) >> np.uint64(32)
    # floats that are not negative rank as their bits do
    keys = (dense.view(np.uint32).astype(np.uint64) << np.uint64(32)) | ties
    return np.where(dense > 0, keys, np.uint64(0))


def least_key(parts: Callable[[], Iterable[tuple[Keys, Doubles]]], room: float) -> int:
    """The lowest key such that all samples of at least that key fit into `room` bytes.

    `parts` gives keys and bytes of all samples, some at a time, as often as it is called. The key is found
    from its first bits to its last, until what is left open is less than a thousandth of the room.
    """
    prefix, left = 0, room
    for shift in (48, 32, 16, 0):
        sums = _sums(parts(), prefix, shift)
        above = np.append(np.cumsum(sums[::-1])[::-1], 0.0)  # bytes of each bin with all above it
        edge = int(np.argmax(above <= left))
        if not edge:
            return max(1, prefix << (shift + _BITS))
        left -= above[edge]
        prefix = (prefix << _BITS) | (edge - 1)
        if sums[edge - 1] * _CLOSE <= room:
            break
    return (prefix + 1) << shift


def _sums(parts: Iterable[tuple[Keys, Doubles]], prefix: int, shift: int) -> Doubles:
    """Bytes of the samples whose keys begin with the prefix, by the bits that follow it."""
    sums = np.zeros(_BINS)
    for keys, sizes in parts:
        if shift < 64 - _BITS:
            (inside,) = np.nonzero((keys >> np.uint64(shift + _BITS)) == np.uint64(prefix))
            keys, sizes = keys[inside], sizes[inside]
        bins = ((keys >> np.uint64(shift)) & np.uint64(_BINS - 1)).astype(np.intp)
        sums += np.bincount(bins, weights=np.where(keys > 0, sizes, 0.0), minlength=_BINS)
    return sums


class Worth:
    """What each sample of an index is worth, and what that must be for it to be held.

    Held samples take the bytes that they take, others as many as their files, or less in the proportion in
    which that was so until now. `candidates` are the samples that there is a choice of, None: all.
    """

    def __init__(self, index: Index, table: Table, candidates: Positions | None) -> None:
        self._index, self._table, self._candidates = index, table, candidates
        self._values: NDArray[np.floating[Any]] | None = None
        self._least = _NEVER
        self._ratio, self._stale = 1.0, True
        self._taken = np.zeros(3)  # entries, their bytes and those of their files

    def set(self, values: NDArray[np.floating[Any]] | None) -> None:
        """What a hit on each sample of the index is worth; None: all alike."""
        if values is not None and values.shape != (len(self._index),):
            raise WrongUse(f"importance has the shape {values.shape}; {(len(self._index),)} is needed")
        self._values, self._stale = values, True

    def learn(self, positions: Positions, size: int) -> None:
        """Entries of these samples take so many bytes."""
        files = float(self._index.sizes[positions].sum())
        self._taken += (len(positions), size - LENGTH * len(positions), files)

    def keys(self, positions: Positions) -> tuple[Keys, Doubles]:
        """How much each is worth its room, and bytes that it takes or may take."""
        slots = self._table.find(positions)
        sizes = np.ceil(self._index.sizes[positions] * self._ratio) + LENGTH + OVERHEAD
        sizes = np.where(slots >= 0, self._table.sizes[slots], sizes)
        values = np.ones(1, np.float32) if self._values is None else self._values[positions]
        return rank(values, sizes, positions), sizes

    def reached(self, keys: Keys) -> Marks:
        """Which keys are those of samples that should be held."""
        found: Marks = keys >= np.uint64(self._least)
        return found

    def reckon(self, room: int) -> bool:
        """Find what must be reached for so many bytes; False if nothing has changed since it was found."""
        count, entries, files = self._taken.tolist()
        ratio = max(entries / max(files, 1.0), _LEAST_RATIO) if count >= _TELLING else 1.0
        if not self._stale and abs(ratio / self._ratio - 1) <= _DRIFT:
            return False
        self._ratio, self._stale = ratio, False
        self._least = least_key(self._parts, room)
        return True

    def _parts(self) -> Iterator[tuple[Keys, Doubles]]:
        some = self._candidates
        count = len(self._index) if some is None else len(some)
        for begin in range(0, count, _BLOCK):
            end = min(begin + _BLOCK, count)
            yield self.keys(np.arange(begin, end) if some is None else some[begin:end])
