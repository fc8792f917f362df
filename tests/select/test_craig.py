"""Medoids of whole classes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from columns import make_samples
from coresets import ENOUGH, distances, random_vectors, similarities
from headwater.select.craig import Craig


@pytest.mark.parametrize("seed", range(20))
def test_near_the_best_medoids_of_every_class(seed: int) -> None:
    vectors = random_vectors(np.random.default_rng(seed), 12)
    labels = np.array([0, 1] * 6)
    choice = Craig(0.5).choose(make_samples(12, labels=labels, vectors=vectors))
    for label in (0, 1):
        places = np.flatnonzero(labels == label)
        table, taken = similarities(vectors[places]), np.isin(places, choice.places)
        values = [table[:, some].max(axis=1).sum() for some in itertools.combinations(range(6), 3)]
        assert ENOUGH * max(values) <= table[:, taken].max(axis=1).sum() <= max(values) + 1e-4


def test_the_weight_is_the_number_of_samples_of_the_class_that_are_nearest() -> None:
    vectors, labels = random_vectors(np.random.default_rng(0), 400), np.arange(400) % 3
    choice = Craig(0.1).choose(make_samples(400, labels=labels, vectors=vectors))
    apart = np.where(labels[:, None] == labels[choice.places], distances(vectors)[:, choice.places], np.inf)
    assert choice.weights is not None
    assert choice.weights.tolist() == np.bincount(apart.argmin(axis=1)).tolist()
    assert choice.reason == "10% of each class as medoids"


def test_a_class_whose_pairs_do_not_fit_in_memory() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(8300, 2)).astype(np.float32)
    labels = np.where(np.arange(8300) < 100, 1, 0)
    choice = Craig(0.01).choose(make_samples(8300, labels=labels, vectors=vectors))
    assert choice.weights is not None
    assert np.bincount(labels[choice.places], choice.weights).tolist() == [8200, 100]
    big = vectors[labels == 0]
    some = rng.choice(8200, 82, replace=False)

    def mean_distance(centers: np.ndarray) -> float:
        return float(np.linalg.norm(big[:, None] - centers, axis=2).min(axis=1).mean())

    taken = vectors[[place for place in choice.places if labels[place] == 0]]
    assert mean_distance(taken) < 0.85 * mean_distance(big[some])
