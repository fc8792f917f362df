"""What every objective promises a maximiser: gains that are what they say, and never grow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from columns import seeds
from coresets import KINDS, distances, random_table, random_vectors, similarities, value_of
from headwater.select.objectives import OBJECTIVES, Objective, alike
from headwater.select.parts import Vectors

every_objective = pytest.mark.parametrize("name", OBJECTIVES)


def row(count: int) -> np.ndarray:
    return np.arange(count)[None]


@pytest.mark.parametrize("name", ["facility_location", "graph_cut"])
@pytest.mark.parametrize("given_table", [False, True])
def test_gains_are_differences_of_the_value(name: str, given_table: bool) -> None:
    rng = np.random.default_rng(0)
    vectors = random_table(rng, 9) if given_table else random_vectors(rng, 9)
    table = vectors.astype(np.float64) if given_table else similarities(vectors)
    progress, taken = OBJECTIVES[name](given=given_table).begin(vectors, row(9)), list[int]()
    before = 0.0
    for place in (4, 0, 7):
        wanted = [value_of(name, table, [*taken, other]) - before for other in range(9)]
        open_ = [other for other in range(9) if other not in taken]
        found = progress.gains()[:, 0]
        assert found[open_] == pytest.approx(np.array(wanted)[open_], abs=1e-4)
        taken.append(place)
        progress.take(np.array([place]))
        before = value_of(name, table, taken)
        assert progress.value()[0] == pytest.approx(before, abs=1e-4)


def test_the_gain_of_k_center_is_the_distance_to_what_was_taken() -> None:
    vectors = random_vectors(np.random.default_rng(0), 9)
    progress = OBJECTIVES["k_center"]().begin(vectors, row(9))
    assert len(set(progress.gains()[:, 0].tolist())) == 1
    for taken in ([4], [4, 0], [4, 0, 7]):
        progress.take(np.array(taken[-1:]))
        far = distances(vectors)[:, taken].min(axis=1)
        assert progress.gains()[:, 0] == pytest.approx(far, abs=1e-5)
        assert progress.value()[0] == pytest.approx(-far.max(), abs=1e-5)


def test_k_center_of_a_given_table_goes_to_the_least_alike() -> None:
    table = np.array([[1, 0.9, 0.2], [0.9, 1, 0.1], [0.2, 0.1, 1]], np.float32)
    progress = OBJECTIVES["k_center"](given=True).begin(table, row(3))
    progress.take(np.array([1]))
    assert progress.gains()[:, 0].argmax() == 2


@every_objective
@given(seed=seeds, kind=st.sampled_from(KINDS), count=st.integers(2, 40))
@settings(max_examples=60, deadline=None)
def test_no_gain_ever_grows_by_a_bit(name: str, seed: int, kind: str, count: int) -> None:
    rng = np.random.default_rng(seed)
    progress = OBJECTIVES[name]().begin(random_vectors(rng, count, kind=kind), row(count))
    before = progress.gains().copy()
    for place in rng.permutation(count)[:6]:
        progress.take(np.array([place]))
        assert (progress.gains() <= before).all()
        before = progress.gains().copy()


@every_objective
@given(seed=seeds, count=st.integers(2, 50))
@settings(max_examples=40, deadline=None)
def test_a_gain_is_the_same_alone_and_among_others(name: str, seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    progress = OBJECTIVES[name]().begin(random_vectors(rng, 3 * count), np.arange(3 * count).reshape(3, -1))
    progress.take(rng.integers(0, count, 3))
    places = rng.integers(0, count, (5, 3))
    found = progress.gains(places)
    assert found.tolist() == progress.gains()[places, np.arange(3)].tolist()
    assert found[2:3].tolist() == progress.gains(places[2:3]).tolist()


@every_objective
@pytest.mark.parametrize("given_table", [False, True])
def test_problems_side_by_side_do_not_mix(name: str, given_table: bool) -> None:
    rng = np.random.default_rng(1)
    vectors = random_table(rng, 20) if given_table else random_vectors(rng, 20)
    rows = rng.permutation(20)[:18].reshape(3, 6)
    objective = OBJECTIVES[name](given=given_table)
    together, taken = objective.begin(vectors, rows), np.array([[5, 0, 2], [1, 4, 3]])
    apart = [objective.begin(vectors, some[None]) for some in rows]
    for places in taken:
        together.take(places)
        for one, place in zip(apart, places, strict=True):
            one.take(np.array([place]))
    assert together.gains() == pytest.approx(np.hstack([one.gains() for one in apart]), abs=1e-5)
    assert together.value() == pytest.approx(np.hstack([one.value() for one in apart]), abs=1e-5)
    assert together.cover.sizes().tolist() == [one.cover.sizes()[0].tolist() for one in apart]


@every_objective
@pytest.mark.parametrize("count", [5, 700])
def test_rows_that_do_not_fit_are_computed_again(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = random_vectors(np.random.default_rng(0), count)

    def outcome(objective: Objective) -> tuple[Vectors, Vectors]:
        progress = objective.begin(vectors, row(count))
        progress.take(np.array([3]))
        return progress.gains(), progress.gains(np.array([[4], [0]]))

    kept = outcome(OBJECTIVES[name]())
    monkeypatch.setattr(alike, "_TABLE", 0)
    for one, other in zip(kept, outcome(OBJECTIVES[name]()), strict=True):
        assert one == pytest.approx(other, abs=1e-3)


@every_objective
def test_half_floats_will_do(name: str) -> None:
    vectors = random_vectors(np.random.default_rng(0), 8).astype(np.float16)
    progress = OBJECTIVES[name]().begin(vectors, row(8))
    progress.take(np.array([2]))
    assert progress.gains().dtype == np.float32
    assert np.isfinite(progress.gains()).all()
