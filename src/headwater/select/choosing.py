"""What several selectors do with scores: take a share of every class, and know what they were not told."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.select.samples import Ints, Marks, Samples

Scores = NDArray[np.floating[Any]]

_FEW = 1 << 16


def check_share(share: float) -> None:
    """Raise `WrongUse` unless it is a share of the samples."""
    if not 0 < share <= 1:
        raise WrongUse(f"share is {share}; it must be above 0 and at most 1")


def check_part(name: str, value: float) -> None:
    """Raise `WrongUse` unless it is a part of a whole: all of it and nothing will do."""
    if not 0 <= value <= 1:
        raise WrongUse(f"{name} is {value}; it must be from 0 to 1")


def check_explore(value: float | None) -> None:
    """Raise `WrongUse` unless it is a part of all samples, or left to what scores are of."""
    if value is not None:
        check_part("explore", value)


def part_of(counts: Ints, share: float) -> Ints:
    """How many samples of each class make the share: at least one."""
    found: Ints = np.maximum(1, np.ceil(counts * share - 1e-9).astype(np.int64))
    return found


def distinct(labels: Ints) -> Ints:
    """The labels that there are, in order."""
    if not len(labels) or not _are_few(labels):
        return np.unique(labels)
    least = labels.min()
    there = np.zeros(labels.max() - least + 1, np.bool_)
    there[labels - least] = True
    found: Ints = np.flatnonzero(there) + least
    return found


def _are_few(labels: Ints) -> bool:
    return int(labels.max()) - int(labels.min()) < _FEW


def by_class(labels: Ints) -> tuple[Ints, Ints]:
    """Places class after class, ascending within each; where each class begins, and the end of the last."""
    if not len(labels):
        return np.empty(0, np.int64), np.zeros(1, np.int64)
    # of two bytes, because those are sorted in linear time
    codes = (labels - labels.min()).astype(np.uint16) if _are_few(labels) else labels
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    steps = np.flatnonzero(sorted_codes[1:] != sorted_codes[:-1]) + 1
    return order, np.concatenate(([0], steps, [len(labels)]))


def mark_lowest(scores: Scores, count: int) -> Marks:
    """Marks of that many of the lowest, the first of equal ones; NaN counts as the highest."""
    if count >= len(scores):
        return np.ones(len(scores), np.bool_)
    if count <= 0:
        return np.zeros(len(scores), np.bool_)
    limit = np.partition(scores, count - 1)[count - 1]
    if np.isnan(limit):
        marks, equal = ~np.isnan(scores), np.isnan(scores)
    else:
        marks, equal = scores < limit, scores == limit
    marks[np.flatnonzero(equal)[: count - np.count_nonzero(marks)]] = True
    return marks


def lowest(scores: Scores, labels: Ints, *, share: float, turn: int = 0) -> Ints:
    """Places of the lowest scores of each class, a share of it; NaN counts as the highest.

    A later turn has the next lowest; where fewer are left than make the share, the highest.
    """
    if share >= 1:
        return np.arange(len(labels), dtype=np.int64)
    taken = np.zeros(len(labels), np.bool_)
    order, begins = by_class(labels)
    counts = part_of(np.diff(begins), share)
    for (begin, end), count in zip(pairwise(begins), counts, strict=True):
        places, first = order[begin:end], min(turn * count, end - begin - count)
        own = scores[places]
        taken[places] = mark_lowest(own, first + count) & ~mark_lowest(own, first)
    return np.flatnonzero(taken)


def everything(samples: Samples) -> Ints:
    return np.arange(len(samples), dtype=np.int64)


def known(samples: Samples, column: str) -> Marks:
    """Of which samples a column has something to say; a loss that is infinite says nothing."""
    found: Marks = np.isfinite(getattr(samples, column))
    return found
