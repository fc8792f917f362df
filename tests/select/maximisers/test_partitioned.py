"""Pieces of parts."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from columns import make_samples
from coresets import random_vectors
from headwater.errors import WrongUse
from headwater.select.maximisers import Lazy, Naive, Partitioned
from headwater.select.objectives import FacilityLocation
from headwater.select.parts import Parts


def test_parts_smaller_than_a_piece_are_solved_whole() -> None:
    vectors, parts = random_vectors(np.random.default_rng(0), 50), Parts.whole(50, 9)
    found = Partitioned(50).maximise(FacilityLocation(), vectors, parts)
    assert found.places.tolist() == Naive().maximise(FacilityLocation(), vectors, parts).places.tolist()


def test_whatever_solves_the_pieces() -> None:
    vectors, parts = random_vectors(np.random.default_rng(0), 500), Parts.whole(500, 90)
    one, other = (
        Partitioned(32, inner).maximise(FacilityLocation(), vectors, parts) for inner in (Naive(), Lazy())
    )
    assert sorted(one.places) == sorted(other.places)


def test_every_class_gives_its_share() -> None:
    labels = np.random.default_rng(0).integers(0, 30, 1000)
    samples = make_samples(1000, labels=labels)
    parts = Parts.of_classes(samples, np.arange(1000), share=0.05)
    vectors = random_vectors(np.random.default_rng(1), 1000)
    found = Partitioned(16).maximise(FacilityLocation(), vectors, parts)
    assert np.bincount(labels[found.places]).tolist() == np.ceil(np.bincount(labels) * 0.05).tolist()
    assert np.bincount(labels[found.places], found.sizes).tolist() == np.bincount(labels).tolist()


def test_memory_is_that_of_some_pieces() -> None:
    count = 20_000
    vectors, parts = random_vectors(np.random.default_rng(0), count), Parts.whole(count, 6000)
    tracemalloc.start()
    try:
        Partitioned(64).maximise(FacilityLocation(), vectors, parts)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # all pairs would be 1.6 GB
    assert most < 20e6


@pytest.mark.parametrize("chunk", [0, -1])
def test_a_chunk_of_no_samples(chunk: int) -> None:
    with pytest.raises(WrongUse, match=f"a chunk of {chunk} samples"):
        Partitioned(chunk)
