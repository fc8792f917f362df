"""Small problems for tests of objectives and maximisers, their values by hand, and the optimum."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from headwater.select.parts import Vectors

Doubles = NDArray[np.float64]
ENOUGH = 1 - 1 / np.e
"""What the greedy reaches of the best value of a monotone submodular objective."""


def random_vectors(rng: np.random.Generator, count: int, *, kind: str = "normal") -> Vectors:
    """Vectors in general position, in groups, on a grid with many equals, or all the same."""
    if kind == "groups":
        centers = rng.normal(0, 5, (3, 4))
        return (centers[rng.integers(0, 3, count)] + rng.normal(0, 0.1, (count, 4))).astype(np.float32)
    if kind == "grid":
        return rng.integers(0, 3, (count, 2)).astype(np.float32)
    if kind == "same":
        return np.full((count, 3), 0.7, np.float32)
    return rng.normal(size=(count, 4)).astype(np.float32)


KINDS = ("normal", "groups", "grid", "same")


def random_table(rng: np.random.Generator, count: int) -> Vectors:
    """Similarities that come from no distance: symmetric, none negative."""
    table = rng.random((count, count))
    return ((table + table.T) / 2).astype(np.float32)


def distances(vectors: Vectors) -> Doubles:
    points = vectors.astype(np.float64)
    found: Doubles = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2))
    return found


def similarities(vectors: Vectors) -> Doubles:
    """How objectives see vectors: a distance above all, less the distance."""
    points = vectors.astype(np.float64)
    top = 2.001 * np.sqrt(((points - points.mean(axis=0)) ** 2).sum(axis=1)).max()
    found: Doubles = top - distances(vectors)
    return found


def value_of(name: str, table: Doubles, taken: Iterable[int]) -> float:
    """Of similarities; for k-center of distances."""
    some = list(taken)
    if name == "k_center":
        return -float(table[:, some].min(axis=1).max())
    if name == "graph_cut":
        return float(table[:, some].sum() - 0.4 * table[np.ix_(some, some)].sum())
    return float(table[:, some].max(axis=1).sum())


def table_of(name: str, vectors: Vectors) -> Doubles:
    return distances(vectors) if name == "k_center" else similarities(vectors)


def optimum(name: str, table: Doubles, budget: int) -> float:
    """The best value of all subsets."""
    return max(value_of(name, table, some) for some in itertools.combinations(range(len(table)), budget))
