"""Fits: what they find, how few rows they need to stay sane, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.measure.fits import HELD, Fit, SteadyFit

Doubles = NDArray[np.float64]
seeds = st.integers(0, 2**32 - 1)

TRUE = np.array([2.0, 0.5, 30.0])


def make_features(rng: np.random.Generator, rows: int) -> Doubles:
    """Something to be proportional to, of very different sizes, and two more that matter."""
    size = 10 ** rng.uniform(3, 5, rows)
    return np.stack([size, size * rng.uniform(0, 2, rows), rng.uniform(0, 50, rows)], axis=1)


def make_rows(rng: np.random.Generator, rows: int, *, noise: float = 0.0) -> tuple[Doubles, Doubles]:
    x = make_features(rng, rows)
    return x, x @ TRUE * (1 + noise * rng.standard_normal(rows))


def fit_of(x: Doubles, y: Doubles) -> Fit:
    fit = Fit(x.shape[1])
    fit.add(x, y)
    return fit


def test_many_rows_give_what_made_them() -> None:
    rng = np.random.default_rng(0)
    fit = fit_of(*make_rows(rng, 20_000, noise=0.1))
    x, y = make_rows(rng, 1000)
    assert fit.predict(x) == pytest.approx(y, rel=0.03)


def test_small_rows_count_as_much_as_large_ones() -> None:
    rng = np.random.default_rng(1)
    x, y = make_rows(rng, 5000)
    large = x[:, 0] > np.median(x[:, 0])
    y[large] *= 1 + 0.3 * rng.standard_normal(int(large.sum()))
    fit = fit_of(x, y)
    assert fit.predict(x[~large]) == pytest.approx(x[~large] @ TRUE, rel=0.05)


def test_before_the_first_row_it_predicts_nothing() -> None:
    fit = Fit(3)
    assert fit.predict(make_features(np.random.default_rng(0), 5)).tolist() == [0] * 5
    assert (fit.count, fit.weight) == (0, 0)
    fit.add(np.empty((0, 3)), np.empty(0))
    assert fit.count == 0


def test_one_row_gives_its_ratio() -> None:
    fit = fit_of(np.array([[10.0, 3.0, 7.0]]), np.array([25.0]))
    assert fit.predict(np.array([[4.0, 900.0, -5.0]])).tolist() == [10]


@given(seed=seeds, rows=st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_few_rows_stay_near_their_ratios(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = make_rows(rng, rows, noise=0.2)
    ratios = y / x[:, 0]
    other = make_features(rng, 200)
    found = fit_of(x, y).predict(other) / other[:, 0]
    assert found.min() >= 0.1 * ratios.mean() * (1 - 1e-9)
    assert found.max() <= (ratios.mean() + 6 * ratios.std()) * (1 + 1e-9)


def test_few_rows_of_noise_are_not_taken_for_slopes() -> None:
    far = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        x, other = make_features(rng, 4), make_features(rng, 50)
        fit = fit_of(x, x[:, 0] * (1 + 0.2 * rng.standard_normal(4)))
        far.append(np.abs(fit.predict(other) / other[:, 0] / fit.ratio - 1).mean())
    assert np.mean(far) < 0.15


@pytest.mark.parametrize("constant", [0.0, 1.0, 1e9])
def test_features_that_do_not_vary_do_no_harm(constant: float) -> None:
    rng = np.random.default_rng(3)
    x, y = make_rows(rng, 500)
    more = np.column_stack([x, x[:, 0] * constant, x[:, 1]])
    assert fit_of(more, y).predict(more) == pytest.approx(fit_of(x, y).predict(x), rel=0.02)


@given(seed=seeds, parts=st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_rows_may_come_in_any_parts(seed: int, parts: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = make_rows(rng, 60, noise=0.3)
    whole, slow = fit_of(x, y), Fit(3)
    for rows in np.array_split(rng.permutation(60), parts):
        slow.add(x[rows], y[rows])
    assert slow.count == whole.count
    assert slow.predict(x) == pytest.approx(whole.predict(x), rel=1e-6)


def test_a_prediction_is_never_below_zero() -> None:
    x = np.stack([np.ones(50), np.linspace(0, 1, 50)], axis=1)
    fit = fit_of(x, 5 - 5 * x[:, 1])
    assert fit.predict(np.array([[1.0, 30.0], [1e6, 2e6]])).min() >= 0
    assert fit_of(x, -np.ones(50)).predict(x).tolist() == [0] * 50


def test_what_is_forgotten_gives_way() -> None:
    rng = np.random.default_rng(4)
    x, y = make_rows(rng, 3000)
    kept, faded = fit_of(x, y), fit_of(x, y)
    faded.forget(0.99)
    for fit in (kept, faded):
        fit.add(x[:300], 3 * y[:300])
    now = 3 * y[:300]
    assert np.median(faded.predict(x[:300]) / now) > 0.9
    assert np.median(kept.predict(x[:300]) / now) < 0.5
    assert faded.weight < kept.weight
    assert faded.count == kept.count == 3300


def test_all_forgotten_leaves_the_ratio() -> None:
    x, y = make_rows(np.random.default_rng(5), 100)
    fit = fit_of(x, y)
    fit.forget(1)
    assert fit.predict(x) == pytest.approx(np.mean(y / x[:, 0]) * x[:, 0])
    fit.add(x[:1], 2 * y[:1])
    assert fit.predict(x[:1]) == pytest.approx(2 * y[:1])


def test_joined_evidence_is_that_of_all_rows() -> None:
    x, y = make_rows(np.random.default_rng(6), 80, noise=0.2)
    fit = fit_of(x[:30], y[:30])
    fit.join(fit_of(x[30:], y[30:]))
    assert fit.predict(x) == pytest.approx(fit_of(x, y).predict(x), rel=1e-9)
    assert fit.count == 80


def test_kin_count_for_so_many_rows_at_most() -> None:
    x = np.ones((1000, 1))
    fit = fit_of(x[:30], np.full(30, 2.0))
    fit.join(fit_of(x, np.full(1000, 4.0)), most=10)
    assert fit.weight == 40
    assert fit.predict(x[:1]).tolist() == pytest.approx([2.5])
    fit.join(Fit(1), most=10)
    assert fit.weight == 40


@pytest.mark.parametrize("kind", [Fit, SteadyFit])
def test_stored_and_read_it_is_the_same_bit_for_bit(kind: Callable[[int], Fit | SteadyFit]) -> None:
    rng = np.random.default_rng(7)
    fit = kind(3)
    fit.add(*make_rows(rng, 333, noise=0.3))
    again = type(fit).from_dict(json.loads(json.dumps(fit.to_dict())), 3)
    x, y = make_rows(rng, 50, noise=0.3)
    assert np.array_equal(again.predict(x), fit.predict(x))
    for one in (fit, again):
        one.add(x, y)
    assert again.to_dict() == fit.to_dict()
    assert again.count == fit.count


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e250])
def test_what_is_not_finite_is_refused_and_changes_nothing(value: float) -> None:
    x, y = make_rows(np.random.default_rng(8), 20)
    for fit in (Fit(3), SteadyFit(3)):
        with pytest.raises(WrongUse, match="not finite"):
            fit.add(x, np.full(20, value))
        fit.add(x, y)
        before = fit.to_dict()
        for place in range(1, 4):
            bad = np.column_stack([x, y])
            bad[5, place] = value
            with pytest.raises(WrongUse, match="not finite"):
                fit.add(bad[:, :3], bad[:, 3])
        assert fit.to_dict() == before


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_the_first_feature_must_be_above_zero(value: float) -> None:
    x, y = make_rows(np.random.default_rng(9), 20)
    x[3, 0] = value
    with pytest.raises(WrongUse, match="first feature"):
        Fit(3).add(x, y)
    with pytest.raises(WrongUse, match="first feature"):
        Fit(3).predict(x)


def test_shapes_and_shares_are_checked() -> None:
    with pytest.raises(WrongUse, match="0 features"):
        Fit(0)
    with pytest.raises(WrongUse, match=r"\(rows, 3\)"):
        Fit(3).predict(np.ones((5, 2)))
    with pytest.raises(WrongUse, match="one per row"):
        Fit(3).add(np.ones((5, 3)), np.ones(4))
    for share in (-0.1, 1.1, np.nan):
        with pytest.raises(WrongUse, match="from 0 to 1"):
            Fit(3).forget(share)
    with pytest.raises(WrongUse, match="not finite"):
        fit_of(np.ones((5, 3)), np.ones(5)).predict(np.full((2, 3), np.inf))


@pytest.mark.parametrize(
    "change",
    [
        {"mean": [1.0]},
        {"mean": [[1.0, 2.0, 3.0]]},
        {"scatter": [[1.0]]},
        {"weight": -1.0},
        {"weight": float("nan")},
        {"count": "many"},
        {"scatter": [[-1.0, 0, 0], [0, 1, 0], [0, 0, 1]]},
        {"mean": [1.0, float("inf"), 1.0]},
        {"mean": None},
    ],
)
def test_a_damaged_fit_is_refused(change: dict[str, object]) -> None:
    fit = fit_of(*make_rows(np.random.default_rng(10), 20))
    with pytest.raises(WrongUse, match="measure again"):
        Fit.from_dict(fit.to_dict() | change, 3)


def test_a_fit_of_other_features_or_no_fit_is_refused() -> None:
    with pytest.raises(WrongUse, match="2 features"):
        Fit.from_dict(Fit(3).to_dict(), 2)
    with pytest.raises(WrongUse, match="no stored fit"):
        Fit.from_dict({}, 2)


# what is now and then measured far too high


def steady_of(x: Doubles, y: Doubles, *, lot: int) -> SteadyFit:
    fit = SteadyFit(x.shape[1])
    for begin in range(0, len(y), lot):
        fit.add(x[begin : begin + lot], y[begin : begin + lot])
    return fit


@pytest.mark.parametrize("lot", [1, 3, 64])
@pytest.mark.parametrize("wild", [[0], [0, 1, 2], [50, 51, 130, 299]])
def test_a_few_huge_values_hardly_matter(wild: list[int], lot: int) -> None:
    x, y = make_rows(np.random.default_rng(11), 300, noise=0.1)
    spoilt = y.copy()
    spoilt[wild] *= 500
    calm, fit = steady_of(x, y, lot=lot), steady_of(x, spoilt, lot=lot)
    assert fit.count == 300
    assert np.median(fit.predict(x) / calm.predict(x)) == pytest.approx(1, abs=0.12)


def test_it_predicts_after_so_many_rows_and_not_before() -> None:
    x, y = make_rows(np.random.default_rng(12), HELD)
    fit = steady_of(x[:-1], y[:-1], lot=2)
    assert fit.count == HELD - 1
    assert not fit.predict(x).any()
    assert fit.to_dict()["count"] == 0
    fit.add(x[-1:], y[-1:])
    assert fit.predict(x).all()
    assert fit.to_dict()["count"] == HELD


def test_it_follows_a_drift_in_both_directions() -> None:
    x, y = make_rows(np.random.default_rng(13), 20_000, noise=0.1)
    for factor in (10.0, 0.1):
        fit = steady_of(x[:5000], y[:5000], lot=64)
        for begin in range(0, 20_000, 64):
            fit.add(x[begin : begin + 64], factor * y[begin : begin + 64])
        assert np.median(fit.predict(x) / y) == pytest.approx(factor, rel=0.15)


def test_what_was_nothing_may_become_something() -> None:
    x, y = make_rows(np.random.default_rng(14), 5000)
    fit = steady_of(x, np.zeros(5000), lot=64)
    assert not fit.predict(x).any()
    fit.add(x, y)
    assert fit.predict(x).mean() > 0.3 * y.mean()
