"""Farthest first."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from columns import make_samples
from coresets import distances, random_vectors
from headwater.errors import WrongUse
from headwater.select.k_center import FarthestFirst


def radius(table: np.ndarray, taken: object) -> float:
    return float(table[:, taken].min(axis=1).max())


@pytest.mark.parametrize("seed", range(20))
def test_within_twice_the_least_radius_of_every_class(seed: int) -> None:
    vectors, labels = random_vectors(np.random.default_rng(seed), 12), np.array([0, 1] * 6)
    choice = FarthestFirst(0.5).choose(make_samples(12, labels=labels, vectors=vectors, seed=seed))
    for label in (0, 1):
        places = np.flatnonzero(labels == label)
        table, taken = distances(vectors[places]), np.flatnonzero(np.isin(places, choice.places))
        least = min(radius(table, list(some)) for some in itertools.combinations(range(6), 3))
        assert least - 1e-4 <= radius(table, taken) <= 2 * least + 1e-4


def test_what_is_far_off_is_taken() -> None:
    vectors = random_vectors(np.random.default_rng(0), 200)
    vectors[77], vectors[123] = 30, -30
    choice = FarthestFirst(0.05).choose(make_samples(200, vectors=vectors))
    assert {77, 123} <= set(choice.places.tolist())
    assert choice.weights is not None
    assert choice.weights[np.isin(choice.places, [77, 123])].tolist() == [1, 1]
    assert choice.reason == "5% of each class with the farthest first"


def test_large_classes_in_pieces() -> None:
    vectors = random_vectors(np.random.default_rng(0), 2000)
    table = distances(vectors)
    whole, pieces = (
        FarthestFirst(0.1, chunk=chunk).choose(make_samples(2000, vectors=vectors)) for chunk in (8192, 100)
    )
    assert len(whole.places) == len(pieces.places) == 200
    assert radius(table, whole.places) < radius(table, pieces.places)


def test_a_chunk_of_nothing() -> None:
    with pytest.raises(WrongUse, match="chunk"):
        FarthestFirst(chunk=0)
