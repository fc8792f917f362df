"""The bound on drift: what Hoeffding says, and how many runs it leaves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import WrongUse
from headwater.plan.finetune import Convergence
from pages import DOCS

HEAD = Convergence(weights=1280 * 10 + 10)
MANY = 1e9


def test_by_hand() -> None:
    assert HEAD.drift(1000) == pytest.approx(math.sqrt(math.log(2 * 12_810 / 0.05) / 2000))
    assert HEAD.drift(1000) == pytest.approx(0.0811, abs=1e-4)
    assert HEAD.steps(1000) == pytest.approx(math.log((0.05 + HEAD.drift(1000)) / 0.05) / 0.1)


def test_the_page_says_which_numbers_are_constants() -> None:
    page = (DOCS / "explanation" / "ndpipe.md").read_text()
    for text in (f"Δ ≤ {HEAD.most_drift}", f"θ = {HEAD.risk}", f"ε = {HEAD.target}", f"η = {HEAD.rate}"):
        assert text in page


def test_means_of_losses_keep_to_it() -> None:
    """For one weight: means of m coins miss their expectation by more than the drift within the risk."""
    rng, samples = np.random.default_rng(0), 50
    one = Convergence(weights=1, risk=0.1)
    missed = np.abs(rng.integers(0, 2, (20_000, samples)).mean(axis=1) - 0.5) > one.drift(samples)
    assert 0 < missed.mean() <= 0.1


def test_small_data_is_trained_in_one_run_and_large_data_in_three() -> None:
    assert HEAD.most_runs(samples=1000, steps=MANY) == 1
    assert HEAD.most_runs(samples=1400, steps=MANY) == 2
    assert HEAD.most_runs(samples=50_000, steps=MANY) == 3
    assert HEAD.most_runs(samples=50_000, steps=MANY, limit=100) == 76


def test_runs_need_steps_to_come_back() -> None:
    needed = HEAD.steps(50_000 / 3)
    assert HEAD.most_runs(samples=50_000, steps=3 * needed * 1.001) == 3
    assert HEAD.most_runs(samples=50_000, steps=3 * needed * 0.999) == 2
    assert HEAD.most_runs(samples=50_000, steps=0) == 1


@given(st.integers(1, 10**7), st.integers(1, 10**6), st.floats(0, 1e6), st.integers(1, 8))
def test_what_is_chosen_is_allowed_and_the_most(weights: int, samples: int, steps: float, limit: int) -> None:
    rule = Convergence(weights)
    runs = rule.most_runs(samples=samples, steps=steps, limit=limit)
    assert 1 <= runs <= limit
    assert rule.allows(runs, samples=samples, steps=steps)
    assert not any(rule.allows(more, samples=samples, steps=steps) for more in range(runs + 1, limit + 1))


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_more_samples_drift_less_and_more_weights_more(samples: int, weights: int) -> None:
    rule = Convergence(weights)
    assert rule.drift(samples + 1) < rule.drift(samples)
    assert Convergence(weights + 1).drift(samples) > rule.drift(samples)


@pytest.mark.parametrize(
    "wrong", [{"weights": 0}, {"risk": 0.0}, {"risk": 1.0}, {"rate": 0.0}, {"target": -1.0}]
)
def test_wrong_numbers_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(WrongUse, match=f"{next(iter(wrong))}="):
        Convergence(**{"weights": 10, **wrong})  # type: ignore[arg-type]
