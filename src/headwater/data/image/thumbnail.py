"""A small grey picture of a large one, by area, in whole numbers: the same bytes on every machine."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse

Pixels = NDArray[np.uint8]

_LUMA = (299, 587, 114)
"""Thousandths of red, green and blue, as in ITU-R 601."""
_FEW = 160
"""Rows up to which one call for all cells is faster than one for each."""


def shrink(image: Pixels, edge: int) -> Pixels:
    """Grey, `edge` x `edge` x 1: every cell is the mean of its area, rounded; any aspect ratio is squared.

    Cells end within pixels, which count in part on either side. An image smaller than that is enlarged.
    """
    height, width, channels = image.shape
    if image.dtype != np.uint8 or not image.size:
        raise WrongUse(f"a thumbnail is made of uint8 pixels, not of {image.dtype} of {image.shape}")
    weights = np.array(_LUMA if channels == 3 else [1] * channels, np.int64)
    rows = _area_sums(image, edge, weights)
    cells = _area_sums(rows.T[:, :, None], edge, np.ones(1, np.int64)).T
    whole = height * width * int(weights.sum())
    grey: Pixels = ((2 * cells + whole) // (2 * whole)).astype(np.uint8)
    return grey[:, :, None]


def _area_sums(values: NDArray[Any], cells: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums over `cells` equal stretches of the first axis, times `cells`: so they are whole numbers.

    A stretch is whole rows, less the part of its first row that is before it, and the part of the row in
    which it ends. The last axis is weighed.
    """
    count = len(values)
    starts, parts = np.divmod(np.arange(cells + 1) * count, cells)
    sums: NDArray[np.int64] = cells * (_sum_rows(values, starts) @ weights)
    borders = (values[np.minimum(starts, count - 1)] @ weights) * parts[:, None]
    sums += borders[1:] - borders[:-1]
    return sums


def _sum_rows(values: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """Sums of rows from each start up to the next; none, where they are the same."""
    wide = np.uint32 if values.dtype == np.uint8 else np.int64  # the narrower is four times as fast
    if len(values) > _FEW:
        pairs = pairwise(starts.tolist())
        return np.stack([values[begin:end].sum(axis=0, dtype=wide) for begin, end in pairs])
    sums = np.add.reduceat(values, starts[:-1], axis=0, dtype=wide)
    sums[starts[:-1] == starts[1:]] = 0  # of an empty stretch it gives the row
    return sums
