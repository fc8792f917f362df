"""Which samples hang together, directly or through others: union-find over whole columns at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.integer[Any]]


class Forest:
    """Every sample knows the first of its group, itself to begin with."""

    def __init__(self, count: int) -> None:
        self._firsts = np.arange(count)

    @property
    def firsts(self) -> NDArray[np.int64]:
        """The lowest place of each sample's group."""
        return self._firsts.copy()

    def apart(self, left: Places, right: Places) -> NDArray[np.bool_]:
        """Which of these pairs are not in one group yet."""
        marks: NDArray[np.bool_] = self._firsts[left] != self._firsts[right]
        return marks

    def join(self, left: Places, right: Places) -> None:
        """Put the groups of each pair together."""
        left, right = self._firsts[left], self._firsts[right]
        while (apart := left != right).any():
            left, right = left[apart], right[apart]
            np.minimum.at(self._firsts, np.maximum(left, right), np.minimum(left, right))
            self._flatten()
            left, right = self._firsts[left], self._firsts[right]

    def _flatten(self) -> None:
        further = self._firsts[self._firsts]
        while not np.array_equal(further, self._firsts):
            self._firsts, further = further, further[further]
