"""Which vectors of the same label point in nearly the same direction.

In a class of up to `WHOLE` samples every pair is looked at. A larger one is divided by random planes through
its middle into parts (Charikar 2002), several times anew, and pairs are looked for within the parts: time
grows with the samples there, not with their pairs, and some pairs that are just alike enough are missed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.randomness import Draws
from headwater.select.choosing import by_class
from headwater.select.forest import Forest

Vectors = NDArray[np.floating[Any]]
Places = NDArray[np.int64]
Codes = NDArray[np.int64]

WHOLE = 4096
"""Samples of a class up to which each is compared with each."""
_PART = 1024
_ROUNDS = 12
_ROWS = 1024
_STEP = -5  # keys the planes; neither a pipeline's step nor a projection of gradients has this number
_TERMS = 4


def join_vectors(forest: Forest, vectors: Vectors, labels: Places, *, least: float, seed: int) -> None:
    """Join samples of one label whose cosine is at least `least`; zero and NaN are like no other."""
    order, begins = by_class(labels)
    sizes = np.diff(begins)
    classes = np.repeat(np.arange(len(sizes)), sizes)
    small = np.repeat(sizes <= WHOLE, sizes)
    _join_within(forest, vectors, order[small], classes[small], least=least)
    for begin, end in pairwise(begins):
        if end - begin > WHOLE:
            places = order[begin:end]
            for codes in _divide(vectors, places, seed=seed):
                rank = np.argsort(codes, kind="stable")
                _join_within(forest, vectors, places[rank], codes[rank], least=least)


def near(left: Vectors, right: Vectors, *, least: float) -> NDArray[np.bool_]:
    """Which rows have a cosine of at least `least`."""
    marks: NDArray[np.bool_] = np.einsum("nw,nw->n", _units(left), _units(right)) >= least
    return marks


def _join_within(forest: Forest, vectors: Vectors, places: Places, codes: Codes, *, least: float) -> None:
    """Join what is alike where codes are the same; they ascend, and no more than `WHOLE` behind are seen."""
    ends = np.searchsorted(codes, codes, side="right")
    for begin in range(0, len(places), _ROWS):
        last = min(begin + _ROWS, len(places))
        stop = min(int(ends[last - 1]), last + WHOLE)
        units = _units(vectors[places[begin:stop]])
        close = units[: last - begin] @ units.T >= least
        close &= codes[begin:last, None] == codes[None, begin:stop]
        left, right = np.nonzero(np.triu(close, 1))
        forest.join(places[begin + left], places[begin + right])


def _units(vectors: Vectors) -> NDArray[np.float32]:
    """Of length 1; 0 where there is no direction."""
    found = np.nan_to_num(vectors.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    broken = ~np.isfinite(vectors).all(axis=1)
    lengths = np.sqrt(np.square(found, dtype=np.float64).sum(axis=1))
    lengths[broken | (lengths == 0)] = np.inf
    units: NDArray[np.float32] = (found / lengths[:, None]).astype(np.float32)
    return units


def _divide(vectors: Vectors, places: Places, *, seed: int) -> Codes:
    """For each round, which part of the class each is in."""
    bits = max(1, int(np.ceil(np.log2(len(places) / _PART))))
    planes = _draw_planes(vectors.shape[1], _ROUNDS * bits, seed=seed)
    sides = np.empty((len(places), _ROUNDS * bits), np.float32)
    for begin in range(0, len(places), _ROWS):
        some = slice(begin, begin + _ROWS)
        sides[some] = _units(vectors[places[some]]) @ planes
    above = (sides > sides.mean(axis=0, dtype=np.float64)).reshape(-1, _ROUNDS, bits)
    codes: Codes = above @ (1 << np.arange(bits))
    return codes.T


def _draw_planes(width: int, count: int, *, seed: int) -> NDArray[np.float32]:
    """Normals of random planes, nearly as of a normal distribution: each number a sum of uniform ones."""
    draws = Draws.of(np.arange(width), seed=seed, epoch=0, step=_STEP)
    planes = [sum(draws.uniform(_TERMS * one + k) for k in range(_TERMS)) for one in range(count)]
    return (np.stack(planes, axis=1) - _TERMS / 2).astype(np.float32)
