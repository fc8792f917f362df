"""Every maximiser with every objective: against the optimum of six samples, and what all of them promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from columns import seeds
from coresets import ENOUGH, KINDS, optimum, random_vectors, table_of, value_of
from headwater.select.maximisers import MAXIMISERS, BySize, Lazy, Maximiser, Naive, Partitioned, Stochastic
from headwater.select.objectives import OBJECTIVES
from headwater.select.parts import Parts

every_objective = pytest.mark.parametrize("name", OBJECTIVES)
every_maximiser = pytest.mark.parametrize(
    "maximiser",
    [*(make() for make in MAXIMISERS.values()), BySize(2, 4), Partitioned(3), Partitioned(4, Lazy())],
    ids=repr,
)
greedy = pytest.mark.parametrize("maximiser", [Naive(), Lazy(), BySize(), BySize(2), Partitioned()], ids=repr)


def random_parts(rng: np.random.Generator, count: int) -> Parts:
    sizes = np.bincount(rng.integers(0, 4, count), minlength=4)
    sizes = sizes[sizes > 0]
    return Parts(rng.permutation(count), sizes, rng.integers(1, sizes + 1))


@every_objective
@greedy
@given(seed=seeds, kind=st.sampled_from(KINDS), budget=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_near_the_optimum_of_six_samples(
    name: str, maximiser: Maximiser, seed: int, kind: str, budget: int
) -> None:
    vectors = random_vectors(np.random.default_rng(seed), 6, kind=kind)
    table = table_of(name, vectors)
    picks = maximiser.maximise(OBJECTIVES[name](), vectors, Parts.whole(6, budget))
    found, best = value_of(name, table, picks.places), optimum(name, table, budget)
    bound = 2 * best if name == "k_center" else ENOUGH * best
    assert bound - 1e-4 <= found <= best + 1e-4


@every_objective
def test_stochastic_is_near_the_optimum_of_six_samples_on_average(name: str) -> None:
    ratios = []
    for seed in range(60):
        vectors = random_vectors(np.random.default_rng(seed), 6)
        table = table_of(name, vectors)
        picks = Stochastic(0.1).maximise(OBJECTIVES[name](), vectors, Parts.whole(6, 2))
        ratios.append(value_of(name, table, picks.places) / optimum(name, table, 2))
    assert np.mean(ratios) <= 2 if name == "k_center" else np.mean(ratios) >= ENOUGH - 0.1


@every_objective
def test_partitioned_is_near_the_optimum_of_every_piece(name: str) -> None:
    vectors = random_vectors(np.random.default_rng(0), 12)
    picks = Partitioned(6).maximise(OBJECTIVES[name](), vectors, Parts.whole(12, 6))
    for piece in (range(6), range(6, 12)):
        table = table_of(name, vectors[list(piece)])
        taken = [place - piece[0] for place in picks.places if place in piece]
        best = optimum(name, table, 3)
        assert value_of(name, table, taken) >= (2 if name == "k_center" else ENOUGH) * best - 1e-4


@every_objective
@every_maximiser
@given(seed=seeds, kind=st.sampled_from(KINDS), count=st.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_as_many_of_each_part_as_it_is_to_give_and_all_are_stood_for(
    name: str, maximiser: Maximiser, seed: int, kind: str, count: int
) -> None:
    rng = np.random.default_rng(seed)
    vectors, parts = random_vectors(rng, count, kind=kind), random_parts(rng, count)
    picks = maximiser.maximise(OBJECTIVES[name](), vectors, parts)
    assert len(np.unique(picks.places)) == len(picks.places) == parts.budgets.sum()
    assert picks.sizes.min() >= 1
    where = np.repeat(np.arange(len(parts)), parts.sizes)[np.argsort(parts.order)]
    assert np.bincount(where[picks.places]).tolist() == parts.budgets.tolist()
    assert np.bincount(where[picks.places], picks.sizes).tolist() == parts.sizes.tolist()


@every_objective
@every_maximiser
def test_all_samples_if_all_are_wanted(name: str, maximiser: Maximiser) -> None:
    vectors = random_vectors(np.random.default_rng(0), 9)
    picks = maximiser.maximise(OBJECTIVES[name](), vectors, Parts.whole(9, 9))
    assert sorted(picks.places) == list(range(9))
    assert picks.sizes.tolist() == [1] * 9


@every_objective
@every_maximiser
def test_the_same_of_the_same_and_nothing_is_written_to(name: str, maximiser: Maximiser) -> None:
    vectors = random_vectors(np.random.default_rng(0), 50)
    before, parts = vectors.copy(), Parts.whole(50, 12)
    one, other = (maximiser.maximise(OBJECTIVES[name](), vectors, parts) for _ in range(2))
    assert one.places.tolist() == other.places.tolist()
    assert one.sizes.tolist() == other.sizes.tolist()
    assert vectors.tolist() == before.tolist()


def test_the_sizes_are_how_many_are_nearest() -> None:
    vectors = random_vectors(np.random.default_rng(3), 40)
    picks = Naive().maximise(OBJECTIVES["facility_location"](), vectors, Parts.whole(40, 7))
    nearest = table_of("k_center", vectors)[:, picks.places].argmin(axis=1)
    assert picks.sizes.tolist() == np.bincount(nearest, minlength=7).tolist()


def test_the_medoids_of_three_groups() -> None:
    line = np.array([0, 1, 2, 10, 11, 12, 13, 14, 50, 51, 52], np.float32)[:, None]
    picks = Naive().maximise(OBJECTIVES["facility_location"](), line, Parts.whole(11, 3))
    assert sorted(zip(picks.places.tolist(), picks.sizes.tolist(), strict=True)) == [(1, 3), (5, 5), (9, 3)]
