"""What the three selectors by vectors share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from columns import make_samples
from headwater.errors import WrongUse
from headwater.select.craig import Craig
from headwater.select.k_center import FarthestFirst
from headwater.select.medoids import Medoids
from headwater.select.samples import Samples
from headwater.select.selecting import Selector, make_selection

SELECTORS: list[Selector] = [
    Craig(),
    Craig(0.1),
    FarthestFirst(),
    FarthestFirst(0.1, chunk=20),
    Medoids(),
    Medoids(0.1, chunk=7),
    Medoids(0.5, chunk=None),
]
every_selector = pytest.mark.parametrize("selector", SELECTORS, ids=repr)


def random_gradients(count: int, *, classes: int = 5, seed: int = 0, **facts: object) -> Samples:
    """Last-layer gradients of a model that is sure of about half of the samples."""
    rng = np.random.default_rng(seed)
    labels, rows = rng.integers(0, classes, count), np.arange(count)
    logits = rng.normal(size=(count, classes))
    logits[rows, labels] += rng.choice([0, 6], count)
    vectors = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    vectors[rows, labels] -= 1
    facts = {"epoch": 1, **facts}
    return make_samples(count, labels=labels, vectors=vectors.astype(np.float32), **facts)


@every_selector
def test_weights_are_how_many_samples_of_its_class_each_stands_for(selector: Selector) -> None:
    samples = random_gradients(300)
    choice = selector.choose(samples)
    assert choice.weights is not None
    assert choice.weights.min() >= 1
    stood_for = np.bincount(samples.labels[choice.places], choice.weights)
    assert stood_for.tolist() == np.bincount(samples.labels).tolist()
    share = selector.share  # type: ignore[attr-defined]
    counts = np.ceil(np.bincount(samples.labels) * share - 1e-9)
    assert np.bincount(samples.labels[choice.places]).tolist() == counts.tolist()


@every_selector
def test_the_weighted_mean_gradient_is_nearer_than_that_of_a_random_share(selector: Selector) -> None:
    samples = random_gradients(2000)
    assert samples.vectors is not None
    choice = selector.choose(samples)
    assert choice.weights is not None
    mean = samples.vectors.mean(axis=0)
    error = np.linalg.norm(choice.weights @ samples.vectors[choice.places] / 2000 - mean)
    rng, errors = np.random.default_rng(1), []
    for _ in range(50):
        some = rng.choice(2000, len(choice.places), replace=False)
        errors.append(np.linalg.norm(samples.vectors[some].mean(axis=0) - mean))
    assert error < 0.5 * np.sqrt(np.mean(np.square(errors)))


@every_selector
def test_the_same_samples_in_whatever_rows_they_lie(selector: Selector) -> None:
    samples = random_gradients(400)
    turned = samples.take(np.random.default_rng(2).permutation(400))
    one, other = (make_selection(selector, some) for some in (samples, turned))
    weights = [
        dict(zip(some.ids[found.places].tolist(), found.weights.tolist(), strict=True))
        for some, found in ((samples, one), (turned, other))
    ]
    assert weights[0] == weights[1]


@every_selector
def test_a_class_does_not_depend_on_the_others(selector: Selector) -> None:
    samples = random_gradients(400)
    whole = selector.choose(samples)
    places = np.flatnonzero(samples.labels == 2)
    alone = selector.choose(samples.take(places))
    assert places[alone.places].tolist() == [
        place for place in whole.places.tolist() if samples.labels[place] == 2
    ]


@every_selector
def test_samples_without_a_vector_stay_and_stand_for_themselves(selector: Selector) -> None:
    samples = random_gradients(300)
    vectors = np.array(samples.vectors)
    unknown = np.array([0, 17, 18, 299])
    vectors[unknown, [0, 1, 2, 3]] = [np.nan, np.inf, 1e30, -np.inf]
    choice = selector.choose(replace(samples, vectors=vectors))
    assert choice.weights is not None
    where = np.searchsorted(choice.places, unknown)
    assert choice.places[where].tolist() == unknown.tolist()
    assert choice.weights[where].tolist() == [1, 1, 1, 1]
    assert choice.weights.sum() == 300
    assert "4 without a vector" in choice.reason
    rest = np.setdiff1d(np.arange(300), unknown)
    alone = selector.choose(samples.take(rest))
    assert np.setdiff1d(choice.places, unknown).tolist() == rest[alone.places].tolist()


@every_selector
@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_vectors_of_other_floats(selector: Selector, kind: type) -> None:
    samples = random_gradients(300)
    assert samples.vectors is not None
    rounded = samples.vectors.astype(np.float16)
    one, other = (
        selector.choose(replace(samples, vectors=rounded.astype(some))) for some in (np.float32, kind)
    )
    assert one.places.tolist() == other.places.tolist()


@every_selector
def test_no_vector_at_all_of_numbers(selector: Selector) -> None:
    samples = make_samples(20, vectors=np.full((20, 3), np.nan, np.float32))
    assert selector.choose(samples).places.tolist() == list(range(20))


@every_selector
def test_without_vectors_everything_in_the_first_epoch_and_an_error_later(selector: Selector) -> None:
    samples = make_samples(20)
    first = make_selection(selector, samples)
    assert first.places.tolist() == list(range(20))
    assert first.reason == "everything: there are no vectors to compare samples by"
    with pytest.raises(WrongUse, match="learns from 'vectors'"):
        make_selection(selector, replace(samples, epoch=1))


@every_selector
def test_all_of_it_is_taken_alike(selector: Selector) -> None:
    samples = random_gradients(100)
    found = make_selection(replace(selector, share=1.0), samples)  # type: ignore[call-arg,type-var]
    assert found.places.tolist() == list(range(100))
    assert set(found.weights.tolist()) == {1.0}


@every_selector
def test_samples_that_are_all_the_same(selector: Selector) -> None:
    samples = make_samples(100, vectors=np.full((100, 3), 0.3, np.float32))
    choice = selector.choose(samples)
    assert choice.weights is not None
    assert choice.weights.sum() == 100
    assert len(choice.places) == np.ceil(100 * selector.share - 1e-9)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [Craig, FarthestFirst, Medoids])
def test_weights_can_be_left_out(kind: type) -> None:
    samples = random_gradients(300)
    with_weights, without = (kind(weighted=weighted).choose(samples) for weighted in (True, False))
    assert without.weights is None
    assert without.places.tolist() == with_weights.places.tolist()


@pytest.mark.parametrize("kind", [Craig, FarthestFirst, Medoids])
@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"share": 1.1}, {"explore": -0.1}])
def test_shares_that_cannot_be(kind: type, wrong: dict[str, float]) -> None:
    with pytest.raises(WrongUse, match=next(iter(wrong))):
        kind(**wrong)
