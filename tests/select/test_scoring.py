"""What logits say: against the definitions, in double precision, and on what is not finite."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.select.scoring import WIDTH, Gradients, rank_correlation, score, widest_for

RNG = np.random.default_rng(5)


def make(count: int, classes: int, scale: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    logits = (scale * RNG.normal(size=(count, classes))).astype(np.float32)
    return logits, RNG.integers(0, classes, count)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_loss_probability_and_margin_are_what_they_are_called(classes: int) -> None:
    logits, targets = make(200, classes)
    chances, rows = softmax(logits), np.arange(200)
    own = chances[rows, targets]
    others = np.where(np.arange(classes) == targets[:, None], -1, chances).max(axis=1)
    found = score(logits, targets)
    np.testing.assert_allclose(found.loss, -np.log(own), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.probability, own, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(found.margin, own - others, atol=1e-6)
    assert found.loss.dtype == found.probability.dtype == found.margin.dtype == np.float32


def test_a_loss_is_there_where_nothing_is_left_of_the_probability() -> None:
    found = score(np.array([[0.0, 400.0]], np.float32), np.array([0]))
    assert found.loss.tolist() == [400.0]
    assert found.probability.tolist() == [0.0]
    assert found.margin.tolist() == [-1.0]


def test_one_class_alone_has_no_rival() -> None:
    found = score(np.array([[3.0]], np.float32), np.array([0]))
    assert (found.loss[0], found.probability[0], found.margin[0]) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_not_finite_says_nothing(broken: float) -> None:
    logits, targets = make(3, 4)
    logits[1, 2] = broken
    found = score(logits, targets)
    for column in (found.loss, found.probability, found.margin):
        assert np.isnan(column).tolist() == [False, True, False]


def test_no_samples_have_no_scores() -> None:
    assert len(score(np.empty((0, 4), np.float32), np.empty(0, np.int64)).loss) == 0


def test_few_classes_are_told_apart_by_the_error_itself() -> None:
    logits, targets = make(50, 10)
    found = Gradients(10).make(logits, targets)
    assert found.dtype == np.float16
    errors = softmax(logits) - np.eye(10)[targets]
    np.testing.assert_allclose(found, errors, atol=1e-3)


def distances(rows: np.ndarray) -> np.ndarray:
    wide = rows.astype(np.float64).reshape(len(rows), -1)
    return np.linalg.norm(wide[:, None] - wide[None], axis=2)


def outer(logits: np.ndarray, targets: np.ndarray, features: np.ndarray) -> np.ndarray:
    errors = softmax(logits) - np.eye(logits.shape[1])[targets]
    return errors[:, :, None] * features.astype(np.float64)[:, None]


def test_many_classes_are_projected_to_about_the_same_distances() -> None:
    logits, targets = make(60, 200)
    found = Gradients(200).make(logits, targets)
    errors = softmax(logits) - np.eye(200)[targets]
    assert found.shape == (60, WIDTH)
    np.testing.assert_allclose(
        np.linalg.norm(found.astype(float), axis=1), np.linalg.norm(errors, axis=1), rtol=2e-3
    )
    apart = np.triu_indices(60, 1)
    ratios = distances(found)[apart] / distances(errors)[apart]
    assert abs(np.median(ratios) - 1) < 0.1
    assert ratios.std() < 0.25


@pytest.mark.parametrize("classes", [5, 100])
def test_gradients_by_the_weights_have_the_lengths_of_the_exact_ones(classes: int) -> None:
    logits, targets = make(60, classes)
    features = np.abs(RNG.normal(size=(60, 64))).astype(np.float16)
    found, exact = Gradients(classes, 64).make(logits, targets, features), outer(logits, targets, features)
    lengths = np.linalg.norm(exact.reshape(60, -1), axis=1)
    np.testing.assert_allclose(np.linalg.norm(found.astype(float), axis=1), lengths, rtol=2e-3)
    apart = np.triu_indices(60, 1)
    told, true = distances(found)[apart], distances(exact)[apart]
    assert rank_correlation(told, true) > 0.5
    assert abs(np.median(told / true) - 1) < 0.1


def test_the_wider_the_nearer() -> None:
    logits, targets = make(40, 20)
    features = np.abs(RNG.normal(size=(40, 64))).astype(np.float16)
    apart, exact = np.triu_indices(40, 1), distances(outer(logits, targets, features).reshape(40, -1))
    made = [Gradients(20, 64, width=width).make(logits, targets, features) for width in (16, 64, 512)]
    near = [rank_correlation(distances(one)[apart], exact[apart]) for one in made]
    assert near[0] < near[1] < near[2]
    assert near[2] > 0.9


def test_what_has_no_more_numbers_than_a_vector_is_exact() -> None:
    logits, targets = make(30, 5)
    features = np.abs(RNG.normal(size=(30, 20))).astype(np.float16)
    makes, exact = Gradients(5, 20, width=100), outer(logits, targets, features).reshape(30, -1)
    assert makes.width == 100
    np.testing.assert_allclose(makes.make(logits, targets, features), exact, rtol=2e-3, atol=1e-6)


def test_vectors_are_as_wide_as_memory_allows() -> None:
    assert [widest_for(count) for count in (1, 10**6, 10**7, 10**8)] == [512, 512, 53, 32]


def test_the_same_gradients_are_the_same_vectors_in_any_company() -> None:
    logits, targets = make(20, 100)
    makes = Gradients(100)
    np.testing.assert_array_equal(
        makes.make(logits, targets)[3:5], Gradients(100).make(logits[3:5], targets[3:5])
    )


def test_a_sample_that_is_learned_has_no_gradient() -> None:
    logits, targets = np.array([[60.0] + [-60.0] * 99], np.float32), np.array([0])
    assert not Gradients(100).make(logits, targets).any()


def test_ranks_agree_as_spearman_has_it() -> None:
    one = RNG.normal(size=400)
    assert rank_correlation(one, np.exp(one)) == pytest.approx(1.0)
    assert rank_correlation(one, -one) == pytest.approx(-1.0)
    assert abs(rank_correlation(one, RNG.normal(size=400))) < 0.2
    ties = rank_correlation(np.array([1.0, 2, 2, 3]), np.array([1.0, 3, 2, 4]))
    assert ties == pytest.approx(0.9486833)
    assert np.isnan(rank_correlation(np.ones(3), np.arange(3.0)))
