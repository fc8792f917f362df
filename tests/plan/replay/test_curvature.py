"""What a few pairs say about a Hessian."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from headwater.plan.replay import Curvature, Fitted, lbfgs, secants
from headwater.plan.replay.curvature import Form

SIZE = 20
Matrix = NDArray[np.float64]


def make_hessian(seed: int = 0) -> Matrix:
    half = np.random.default_rng(seed).normal(size=(SIZE, SIZE))
    return half @ half.T / SIZE + 0.1 * np.eye(SIZE)


def make_moves(count: int, seed: int = 1) -> Matrix:
    return np.random.default_rng(seed).normal(size=(count, SIZE))


def tell(curvature: Curvature, hessian: Matrix, moves: Matrix) -> Curvature:
    for move in moves:
        assert curvature.observe(move.astype(np.float32), (hessian @ move).astype(np.float32))
    return curvature


def as_matrix(curvature: Curvature) -> Matrix:
    return np.stack([curvature.times(row) for row in np.eye(SIZE, dtype=np.float32)], axis=1)


@pytest.mark.parametrize("form", [lbfgs, secants])
def test_what_was_seen_last_is_known(form: Form) -> None:
    hessian, moves = make_hessian(), make_moves(6)
    found = tell(Fitted(form, 3), hessian, moves)
    assert len(found) == 3
    np.testing.assert_allclose(found.times(moves[-1].astype(np.float32)), hessian @ moves[-1], rtol=1e-4)


@pytest.mark.parametrize("form", [lbfgs, secants])
def test_without_pairs_nothing_is_predicted(form: Form) -> None:
    assert not Fitted(form, 2).times(np.ones(SIZE, np.float32)).any()


def test_secants_know_all_pairs_and_their_mixtures() -> None:
    hessian, moves = make_hessian(), make_moves(4)
    found = tell(Fitted(secants, 4), hessian, moves)
    mixed = np.array([0.3, -2.0, 0.5, 1.0]) @ moves
    np.testing.assert_allclose(found.times(mixed.astype(np.float32)), hessian @ mixed, rtol=1e-3, atol=1e-4)


def test_moves_that_say_the_same_do_no_harm() -> None:
    hessian, move = make_hessian(), make_moves(1)[0]
    found = tell(Fitted(secants, 4), hessian, np.stack([move, move * (1 + 1e-7), 2 * move, move]))
    np.testing.assert_allclose(found.times(move.astype(np.float32)), hessian @ move, rtol=1e-3)


def test_the_compact_form_is_that_of_the_updates_one_by_one() -> None:
    """BFGS as it is in every book, from sigma times one of the last pair."""
    hessian, moves = make_hessian(), make_moves(3)
    changes = moves @ hessian
    full = np.eye(SIZE) * (changes[-1] @ moves[-1]) / (moves[-1] @ moves[-1])
    for s, y in zip(moves, changes, strict=True):
        full += np.outer(y, y) / (y @ s) - full @ np.outer(s, s) @ full / (s @ full @ s)
    np.testing.assert_allclose(as_matrix(tell(Fitted(lbfgs, 3), hessian, moves)), full, rtol=1e-3, atol=1e-4)


def test_it_bends_upwards_whatever_it_is_told() -> None:
    found = as_matrix(tell(Fitted(lbfgs, 2), make_hessian(), make_moves(5)))
    np.testing.assert_allclose(found, found.T, atol=1e-5)
    assert np.linalg.eigvalsh(found).min() > 0


def test_pairs_without_curvature_are_left_out() -> None:
    found, move = Fitted(lbfgs, 2), make_moves(1)[0].astype(np.float32)
    assert not found.observe(move, -move)
    assert not found.observe(move, 0 * move)
    assert not found.observe(0 * move, move)
    assert not found.observe(move * np.float32(np.inf), move)
    assert len(found) == 0


@pytest.mark.parametrize("scale", [1e-12, 1e6])
@pytest.mark.parametrize("form", [lbfgs, secants])
def test_how_small_the_moves_are_makes_no_difference(form: Form, scale: float) -> None:
    hessian, moves = make_hessian(), make_moves(2)
    one, other = tell(Fitted(form, 2), hessian, moves), tell(Fitted(form, 2), hessian, scale * moves)
    probe = make_moves(1, seed=5)[0].astype(np.float32)
    np.testing.assert_allclose(one.times(probe), other.times(probe), rtol=1e-3, atol=1e-5)


def test_what_no_move_has_is_new() -> None:
    moves = np.eye(SIZE)[:2]
    found, asked = tell(Fitted(secants, 2), make_hessian(), moves), np.zeros(SIZE, np.float32)
    assert Fitted(secants, 2).news(moves[0].astype(np.float32)) == 1
    asked[:2] = 3, -1
    assert found.news(asked) == pytest.approx(0, abs=1e-3)
    asked[2] = np.sqrt(10)
    assert found.news(asked) == pytest.approx(np.sqrt(0.5), rel=1e-4)
