"""A label that is said to stay stays: against float32 heads of every size, close and far apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.models.runtime import Classified, decide
from headwater.plan.movement import LinearHead, Movement, norms_of, stays

SAMPLES = 64


def judge(head: LinearHead, features: NDArray[np.float16]) -> Classified:
    return decide(features.astype(np.float32) @ head.weight.T + head.bias)


def make_head(rng: np.random.Generator, classes: int, width: int, scale: float) -> LinearHead:
    weight = scale * rng.normal(size=(classes, width))
    return LinearHead(weight.astype(np.float32), (scale * rng.normal(size=classes)).astype(np.float32))


def moved(head: LinearHead, rng: np.random.Generator, size: float) -> LinearHead:
    weight = head.weight + size * rng.normal(size=head.weight.shape)
    bias = head.bias + size * rng.normal(size=head.bias.shape)
    return LinearHead(weight.astype(np.float32), bias.astype(np.float32))


def published(old: LinearHead, new: LinearHead, norms: NDArray[np.float32]) -> NDArray[np.float64]:
    """2 max|dW| |h| + 2 max|db|."""
    change = np.linalg.norm((new.weight - old.weight).astype(np.float64), axis=1).max()
    return 2 * change * norms + 2 * np.abs(new.bias - old.bias).max()


cases = st.tuples(
    st.integers(0, 2**32 - 1),
    st.integers(2, 40),
    st.integers(1, 300),
    st.sampled_from([1e-3, 1.0, 30.0]),
    st.sampled_from([0.0, 1e-7, 1e-4, 1e-2, 0.1, 1.0]),
)


@given(cases)
def test_what_is_skipped_has_the_label_that_the_new_head_gives(
    case: tuple[int, int, int, float, float],
) -> None:
    seed, classes, width, scale, size = case
    rng = np.random.default_rng(seed)
    old = make_head(rng, classes, width, scale)
    new = moved(old, rng, size * scale)
    features = np.abs(rng.normal(size=(SAMPLES, width))).astype(np.float16)
    before, after = judge(old, features), judge(new, features)
    movement = Movement(old, new)
    most = movement.most(before.labels, norms_of(features))
    sure = stays(before.margins, most)
    np.testing.assert_array_equal(before.labels[sure], after.labels[sure])
    scores, margins = movement.carry(before.scores[sure], before.margins[sure], most[sure])
    assert (scores <= after.scores[sure] * (1 + 1e-5)).all()
    assert (margins <= after.margins[sure] + 1e-5 * np.abs(after.margins[sure])).all()
    assert (margins > 0).all()


@given(cases)
def test_features_that_were_made_again_change_nothing(case: tuple[int, int, int, float, float]) -> None:
    """The margin is of the features as they were; the new head sees those that are kept now."""
    seed, classes, width, scale, size = case
    rng = np.random.default_rng(seed)
    old = make_head(rng, classes, width, scale)
    new = moved(old, rng, size * scale)
    then = np.abs(rng.normal(size=(SAMPLES, width))).astype(np.float16)
    now = np.nextafter(then, np.where(rng.random(then.shape) < 0.5, np.inf, -np.inf).astype(np.float16))
    before = judge(old, then)
    sure = stays(before.margins, Movement(old, new).most(before.labels, norms_of(now)))
    np.testing.assert_array_equal(before.labels[sure], judge(new, now).labels[sure])


@given(cases)
def test_skips_all_that_the_published_bound_skips(case: tuple[int, int, int, float, float]) -> None:
    seed, classes, width, scale, size = case
    rng = np.random.default_rng(seed)
    old = make_head(rng, classes, width, scale)
    new = moved(old, rng, size * scale)
    features = np.abs(rng.normal(size=(SAMPLES, width))).astype(np.float16)
    norms = norms_of(features)
    most = Movement(old, new).most(judge(old, features).labels, norms)
    # but for what rounding may lose, of which the published bound knows nothing
    allowance = Movement(old, old).most(judge(old, features).labels, norms)
    assert (most <= published(old, new, norms) * (1 + 1e-6) + 2 * allowance + 1e-9).all()


def test_a_small_change_skips_most_samples() -> None:
    rng = np.random.default_rng(0)
    old = make_head(rng, 10, 128, 0.3)
    features = np.abs(rng.normal(size=(2000, 128))).astype(np.float16)
    before = judge(old, features)
    sure = stays(before.margins, Movement(old, moved(old, rng, 1e-3)).most(before.labels, norms_of(features)))
    assert sure.mean() > 0.8


def test_a_large_change_skips_nothing() -> None:
    rng = np.random.default_rng(0)
    old, new = make_head(rng, 10, 128, 0.3), make_head(rng, 10, 128, 30.0)
    features = np.abs(rng.normal(size=(200, 128))).astype(np.float16)
    before = judge(old, features)
    assert not stays(before.margins, Movement(old, new).most(before.labels, norms_of(features))).any()


def test_it_is_tight_for_the_worst_features() -> None:
    """Features that lie along the change move the margin by all of the bound, but for the allowances."""
    old = LinearHead(np.zeros((2, 4), np.float32), np.array([1.0, 0.0], np.float32))
    new = LinearHead(np.array([[0, 0, 0, 0], [0.3, 0, 0, 0]], np.float32), old.bias)
    features = np.array([[3, 0, 0, 0]], np.float16)
    (most,) = Movement(old, new).most(np.array([0]), norms_of(features))
    assert most == pytest.approx(0.9, rel=1e-4)
    assert judge(new, features).margins[0] == pytest.approx(0.1, rel=1e-4)


def test_an_unknown_margin_is_never_sure() -> None:
    assert stays(np.array([np.nan, 1.0], np.float32), np.array([-1.0, 0.5])).tolist() == [False, True]


def test_one_class_never_changes() -> None:
    head = LinearHead(np.ones((1, 3), np.float32), np.zeros(1, np.float32))
    features = np.ones((2, 3), np.float16)
    before = judge(head, features)
    assert stays(before.margins, Movement(head, head).most(before.labels, norms_of(features))).all()


def test_what_is_certain_stays_certain_and_a_rounded_score_is_not_believed() -> None:
    head = LinearHead(np.eye(2, dtype=np.float32), np.zeros(2, np.float32))
    scores, margins = Movement(head, head).carry(
        np.array([1.0, 1.0, 0.5], np.float32),
        np.array([2000.0, 20.0, 1.0], np.float32),
        np.array([1000.0, 19.0, 0.0]),
    )
    np.testing.assert_allclose(scores, [1.0, 1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(-1.0))], rtol=1e-6)
    assert margins.tolist() == [1000.0, 1.0, 1.0]


def test_norms_are_upper_bounds() -> None:
    features = np.random.default_rng(0).normal(size=(500, 333)).astype(np.float16)
    exact = np.sqrt(np.square(features.astype(np.longdouble)).sum(axis=1))
    norms = norms_of(features)
    assert (norms >= exact).all()
    np.testing.assert_allclose(norms, exact.astype(np.float64), rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 5), (4, 4)])
def test_heads_of_other_shapes_cannot_be_compared(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(WrongUse, match="different things apart"):
        Movement(make_head(rng, 3, 4, 1.0), make_head(rng, *shape, 1.0))


def test_a_head_is_a_matrix_and_a_vector() -> None:
    with pytest.raises(WrongUse, match="no linear head"):
        LinearHead(np.zeros((3, 4), np.float32), np.zeros(4, np.float32))
