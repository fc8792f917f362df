"""Where a value lies among all: the share of them below it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headwater.select.choosing import by_class
from headwater.select.samples import Ints

Values = NDArray[np.floating[Any]]
Shares = NDArray[np.float64]

STEPS = 1 << 14
"""Shares are exact among so many values; among more they are in steps of one part of this."""
_BLOCK = 1 << 18


def by_rank(
    values: Values, side: Literal["below", "up_to"], make: Callable[[Shares], Shares] | None = None
) -> NDArray[np.float32]:
    """What `make` makes of the share of values below each, or up to it; NaN for those that are not finite.

    Equal values have equal shares. `make` is asked once, for all shares that there are.
    """
    found = np.full(len(values), np.nan, np.float32)
    finite = np.isfinite(values)
    rungs = _rungs(values if finite.all() else values[finite])
    if not len(rungs):
        return found
    shares = np.arange(len(rungs) + 1) / len(rungs)
    table = (shares if make is None else make(shares)).astype(np.float32)
    for start in range(0, len(values), _BLOCK):
        rows = slice(start, start + _BLOCK)
        places = np.searchsorted(rungs, values[rows], side="left" if side == "below" else "right")
        np.copyto(found[rows], table[places], where=finite[rows])
    return found


def _rungs(values: Values) -> Values:
    """The values in order, or as many of them as there are steps, evenly spread over the order."""
    ordered = np.sort(values)
    if len(ordered) <= STEPS:
        return ordered
    return ordered[np.arange(STEPS) * len(ordered) // STEPS]


def rank_within_classes(values: Values, labels: Ints) -> NDArray[np.float32]:
    """The share of its class that lies below each value; NaN for those that are not finite."""
    order, begins = by_class(labels)
    found = np.empty(len(values), np.float32)
    for begin, end in pairwise(begins):
        places = order[begin:end]
        found[places] = by_rank(values[places], "below")
    return found
