"""A coin for each sample, with the share of losses up to its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from columns import make_samples
from headwater.errors import WrongUse
from headwater.select.biggest_losers import BiggestLosers


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0, 3.0])
def test_the_published_chance(beta: float) -> None:
    losses = np.float32([0.3, 5.0, 0.1, 2.0, 1.0])
    shares = np.array([2, 5, 1, 4, 3]) / 5
    samples, visits = make_samples(5, loss=losses, epoch=1), np.zeros(5)
    for seed in range(600):
        choice = BiggestLosers(beta, corrected=True).choose(replace(samples, seed=seed))
        visits[choice.places] += 1
        assert choice.chances is not None
        assert choice.chances.tolist() == pytest.approx((shares**beta)[choice.places], rel=1e-5)
    np.testing.assert_allclose(visits / 600, shares**beta, atol=0.08)


def test_about_one_in_one_plus_beta() -> None:
    losses = np.random.default_rng(0).exponential(1, 20_000)
    for beta in (1, 2, 4):
        choice = BiggestLosers(beta).choose(make_samples(20_000, loss=losses, epoch=1))
        assert len(choice.places) / 20_000 == pytest.approx(1 / (1 + beta), abs=0.02)
        assert choice.chances is None


@pytest.mark.parametrize(("beta", "losses"), [(0, [1, 2, 3]), (8, [2, 2, 2])])
def test_it_leaves_nothing_out(beta: float, losses: list[float]) -> None:
    assert len(BiggestLosers(beta).choose(make_samples(3, loss=losses, epoch=1)).places) == 3


def test_the_biggest_loser_always_comes_and_so_do_the_unknown() -> None:
    losses = np.append(np.linspace(0, 1, 50), [np.nan, 7])
    for seed in range(30):
        choice = BiggestLosers(64, corrected=True).choose(make_samples(52, loss=losses, epoch=1, seed=seed))
        assert choice.places[-2:].tolist() == [50, 51]
        assert choice.chances is not None
        assert choice.chances[-2:].tolist() == [1, 1]


def test_a_negative_beta_is_refused() -> None:
    with pytest.raises(WrongUse, match="beta is -1"):
        BiggestLosers(-1)
