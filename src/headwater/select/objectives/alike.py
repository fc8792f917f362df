"""How alike samples are: minus the distance of their vectors, or as a given matrix says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.select.parts import Vectors
from headwater.select.samples import Ints

Floats = NDArray[np.float32]

_TABLE = 1 << 26
"""Pairs of samples that are kept, a quarter of a GiB; of more, rows are computed when they are asked for."""
_CELLS = 1 << 18
"""Pairs that are computed at once."""

_FARTHEST = 2.001
"""Times the largest distance from the mean: none is farther from another, whatever rounding says."""


@dataclass(frozen=True, eq=False)
class Alike:
    """Similarities within problems of one size that lie side by side.

    A block of them has the shape (rows, problems, samples): what is compared with it has the last two, and is
    then one long run of memory for each row. `least` is below every similarity, (problems, 1); `own` is a
    sample's with itself, (problems, samples).
    """

    least: Floats
    own: Floats
    left: Floats | None = None
    right: Floats | None = None
    table: Floats | None = None

    @classmethod
    def given(cls, matrix: Vectors, rows: Ints) -> Alike:
        """Of a symmetric matrix of similarities, none negative."""
        table = _cut_out(np.asarray(matrix, np.float32), rows)
        own = np.ascontiguousarray(np.diagonal(table, axis1=0, axis2=2))
        return cls(np.zeros((len(rows), 1), np.float32), own, table=table)

    @classmethod
    def of(cls, vectors: Vectors, rows: Ints, *, keep: bool = True) -> Alike:
        """By minus the Euclidean distance; `keep` where rows are asked for again and again."""
        points = np.asarray(vectors[rows], np.float32)
        points = points - points.mean(axis=1, keepdims=True)
        squares = np.einsum("bmd,bmd->bm", points, points)[:, :, None]
        ones = np.ones_like(squares)
        left = np.concatenate((-2 * points, squares, ones), axis=2)
        right = np.ascontiguousarray(np.concatenate((points, ones, squares), axis=2).transpose(0, 2, 1))
        least = -_FARTHEST * np.sqrt(squares.max(axis=1))
        found = cls(least, np.zeros(rows.shape, np.float32), left, right)
        if not keep or rows.size * rows.shape[1] > _TABLE:
            return found
        return cls(least, found.own, table=found._tabulate())

    @property
    def shape(self) -> tuple[int, int]:
        """Problems, and samples in each."""
        return self.own.shape[0], self.own.shape[1]

    def block(self, begin: int, end: int) -> Floats:
        """Rows of the same samples in all problems."""
        if self.table is not None:
            return self.table[begin:end]
        places = np.arange(begin, min(end, self.shape[1]))[:, None]
        return self.at(np.broadcast_to(places, (len(places), self.shape[0])))

    def at(self, places: Ints) -> Floats:
        """Rows of any samples, (rows, problems) of places within the problems."""
        problems, size = self.shape
        if self.table is None:
            return self._compute(places, np.empty((*places.shape, size), np.float32))
        rows = (places * problems + np.arange(problems)).ravel()
        # "raise" would go through a buffer, and be three times slower
        found = np.take(self.table.reshape(-1, size), rows, axis=0, mode="clip")
        return found.reshape(*places.shape, size)

    def _tabulate(self) -> Floats:
        problems, size = self.shape
        table = np.empty((size, problems, size), np.float32)
        step = max(1, _CELLS // (problems * size))
        for begin in range(0, size, step):
            rows = table[begin : begin + step]
            places = np.arange(begin, begin + len(rows))[:, None]
            self._compute(np.broadcast_to(places, rows.shape[:2]), rows)
        return table

    def _compute(self, places: Ints, out: Floats) -> Floats:
        """Rows of any samples, from their vectors; a sample is like itself, whatever rounding says."""
        assert self.left is not None
        assert self.right is not None
        rows, problems = np.arange(len(places)), np.arange(self.shape[0])[:, None]
        turned = out.transpose(1, 0, 2)
        # only the rows of a single problem lie as matrix products can write them
        found = np.matmul(
            self.left[problems, places.T], self.right, out=turned if len(problems) == 1 else None
        )
        np.abs(found, out=found)
        np.negative(np.sqrt(found, out=found), out=found)
        found[problems, rows, places.T] = 0
        if found is not turned:
            turned[:] = found
        return out


def _cut_out(matrix: Floats, rows: Ints) -> Floats:
    """The similarities within each row of places; the matrix itself if that is all of it."""
    problems, size = rows.shape
    if problems == 1 and size == len(matrix) and np.array_equal(rows[0], np.arange(size)):
        return np.ascontiguousarray(matrix)[:, None]
    return np.ascontiguousarray(matrix[rows.T[:, :, None], rows[None]])
