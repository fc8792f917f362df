"""What is known of a Hessian before any step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from headwater.plan.replay import Fitted, Kronecker, Plain, Prior, Span, find_span, lbfgs, secants
from headwater.plan.replay.apart import Numbers, Vector
from headwater.plan.replay.curvature import Form

OUTPUTS, WIDTH, COUNT = 3, 6, 400
RNG = np.random.default_rng(0)
X = (RNG.normal(size=(COUNT, WIDTH)) * np.array([9, 5, 1, 0.3, 0.2, 0.1])).astype(np.float32)
BEND = np.array([[0.5, -0.3, -0.2], [-0.3, 0.4, -0.1], [-0.2, -0.1, 0.3]])


def full_matrix(*, bias: bool) -> NDArray[np.float64]:
    """E[bend] x E[x x'], for weights (outputs, features) and then the bias."""
    x = np.hstack([X, np.ones((COUNT, 1))]) if bias else X
    product = np.kron(BEND, x.T @ x / COUNT)
    if not bias:
        return product
    places = np.arange(OUTPUTS * (WIDTH + 1)).reshape(OUTPUTS, WIDTH + 1)
    order = np.concatenate([places[:, :-1].ravel(), places[:, -1]])
    return product[np.ix_(order, order)]


def respond(prior: Prior, vector: Vector, response: Callable[[Numbers], Numbers]) -> Vector:
    """A vector with each of its directions multiplied by the response to how much it bends."""
    apart = prior.take_apart(vector)
    return apart.times(response(apart.bends)).whole()


def as_matrix(prior: Kronecker, size: int) -> NDArray[np.float64]:
    rows = np.eye(size, dtype=np.float32)
    found = np.stack([prior.times(row) for row in rows], axis=1)
    same = np.stack([respond(prior, row, lambda bend: bend) for row in rows], axis=1)
    np.testing.assert_allclose(found, same, rtol=1e-3, atol=1e-4)
    return found


@pytest.mark.parametrize("bias", [True, False])
def test_all_eigenvectors_give_the_product(bias: bool) -> None:
    prior = Kronecker(find_span(X, WIDTH + bias, bias=bias), BEND)
    expected = full_matrix(bias=bias)
    np.testing.assert_allclose(as_matrix(prior, len(expected)), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("bias", [True, False])
def test_few_eigenvectors_give_what_bends_most(bias: bool) -> None:
    expected = full_matrix(bias=bias)
    found = as_matrix(Kronecker(find_span(X, 2 + bias, bias=bias), BEND), len(expected))
    assert np.linalg.norm(found - expected, 2) < 0.02 * np.linalg.norm(expected, 2)
    np.testing.assert_allclose(found, found.T, atol=1e-4)
    assert np.trace(found) == pytest.approx(np.trace(expected), rel=1e-3)


def test_responses_are_functions_of_the_matrix() -> None:
    prior = Kronecker(find_span(X, WIDTH + 1, bias=True), BEND)
    values, turn = np.linalg.eigh(full_matrix(bias=True))
    vector = RNG.normal(size=len(values)).astype(np.float32)
    expected = turn @ (np.exp(-np.maximum(values, 0)) * (turn.T @ vector))
    np.testing.assert_allclose(respond(prior, vector, lambda bend: np.exp(-bend)), expected, atol=2e-3)


@pytest.mark.parametrize("bias", [True, False])
def test_what_is_taken_apart_keeps_its_length_and_adds_up(bias: bool) -> None:
    one, other = (Kronecker(find_span(X[:size], 3, bias=bias), BEND) for size in (COUNT, 50))
    vectors = RNG.normal(size=(2, OUTPUTS * (WIDTH + bias))).astype(np.float32)
    apart = one.take_apart(vectors[0])
    assert apart.squares.sum() == pytest.approx(float(np.vdot(vectors[0], vectors[0])), rel=1e-4)
    assert len(apart.squares) == len(apart.bends)
    for prior in (one, other, Plain()):
        both = apart.plus(prior.take_apart(vectors[1])).whole()
        np.testing.assert_allclose(both, vectors.sum(0), atol=1e-4)
    np.testing.assert_allclose(Plain().take_apart(vectors[1]).plus(apart).whole(), vectors.sum(0), atol=1e-4)


def test_a_span_of_fewer_rows_than_eigenvectors() -> None:
    span = find_span(X[:3], 32, bias=True)
    assert span.rows.shape == (3, WIDTH + 1)
    assert span.rest >= 0


def test_nothing_known_is_one_in_all_directions() -> None:
    vector = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(respond(Plain(), vector, lambda bend: 3 * bend), 3 * vector)


@pytest.mark.parametrize("form", [lbfgs, secants])
def test_what_is_known_tells_of_directions_that_no_pair_has(form: Form) -> None:
    """Along the bias, of which the pair says nothing; the prior is half of the truth, and scaled by it."""
    truth = full_matrix(bias=True)
    pair, asked = np.zeros((2, len(truth)), np.float32)
    pair[0], asked[-OUTPUTS:] = 1, (1, -1, 0)
    errors = []
    for known in (False, True):
        curvature = Fitted(form, 2)
        if known:
            curvature.assume(Kronecker(find_span(X, 4, bias=True), BEND / 2))
        assert curvature.observe(pair, (truth @ pair).astype(np.float32))
        errors.append(np.linalg.norm(curvature.times(asked) - truth @ asked) / np.linalg.norm(truth @ asked))
    assert errors[1] < 0.1 < 10 < errors[0]


@pytest.mark.parametrize("form", [lbfgs, secants])
def test_what_is_known_may_change_on_the_way(form: Form) -> None:
    span = find_span(X, 4, bias=True)
    pair = RNG.normal(size=OUTPUTS * (WIDTH + 1)).astype(np.float32)
    curvature = Fitted(form, 2)
    curvature.assume(Kronecker(span, BEND))
    curvature.observe(pair, 2 * pair)
    curvature.assume(Kronecker(Span(span.rows, 2 * span.values, span.rest, span.bias), BEND))
    np.testing.assert_allclose(curvature.times(pair), 2 * pair, rtol=1e-3, atol=1e-4)
