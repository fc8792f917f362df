"""Drawing by weight: the count is exact, chances are in proportion, sums are right in expectation."""

from __future__ import annotations

import numpy as np
import pytest

from columns import make_samples
from headwater.select.lottery import draw_by_weight, draw_known


def test_the_count_is_exact_and_infinite_weights_always_come() -> None:
    rng = np.random.default_rng(0)
    weights = rng.random(100) + 0.01
    weights[[3, 50]] = np.inf
    for count in (2, 10, 99, 100):
        places, chances = draw_by_weight(weights, rng.random(100), count)
        assert len(places) == len(chances) == count
        assert {3, 50} <= set(places.tolist())
        assert (np.diff(places) > 0).all()
        assert ((chances > 0) & (chances <= 1)).all()
        assert (chances[np.isin(places, [3, 50])] == 1).all()


def test_chances_are_in_proportion_to_weights() -> None:
    weights = np.repeat([1.0, 2.0, 4.0], 100)
    rng, visits = np.random.default_rng(1), np.zeros(300)
    for _ in range(2000):
        visits[draw_by_weight(weights, rng.random(300), 60)[0]] += 1
    rates = visits.reshape(3, 100).mean(axis=1) / 2000
    np.testing.assert_allclose(rates, np.array([1, 2, 4]) * 60 / 700, rtol=0.03)


def test_sums_by_inverse_chances_are_right_in_expectation() -> None:
    rng = np.random.default_rng(2)
    weights, values = rng.lognormal(0, 1.5, 50), rng.random(50)
    sums = []
    for _ in range(4000):
        places, chances = draw_by_weight(weights, rng.random(50), 12)
        sums.append((values[places] / chances).sum())
    error = np.std(sums) / np.sqrt(len(sums))
    assert np.mean(sums) == pytest.approx(values.sum(), abs=4 * error)


def test_a_share_of_the_known_and_all_of_the_unknown() -> None:
    weights = np.array([1, 2, np.nan, 3, 4, np.nan], np.float32)
    choice = draw_known(make_samples(6), weights, share=0.5, corrected=False, reason="by a test")
    assert len(choice.places) == 4
    assert {2, 5} <= set(choice.places.tolist())
    assert choice.reason == "50% by a test, and 2 of which nothing is known"
    assert choice.chances is None
