"""Chances that fall with the rank of the loss, under a pressure that falls with the epochs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from columns import make_samples
from headwater.errors import WrongUse
from headwater.select.loss_rank import LossRank
from headwater.select.selecting import make_selection


def visits_of(selector: LossRank, losses: np.ndarray, rounds: int = 600) -> np.ndarray:
    samples, visits = make_samples(len(losses), loss=losses, epoch=1), np.zeros(len(losses))
    for seed in range(rounds):
        visits[selector.choose(replace(samples, seed=seed)).places] += 1
    return visits / rounds


def test_chances_fall_exponentially_with_the_rank() -> None:
    losses = np.random.default_rng(0).permutation(200).astype(np.float32)
    rates = visits_of(LossRank(0.1, pressure=100), losses)[np.argsort(-losses)]
    tenths = rates.reshape(10, 20).mean(axis=1)
    # p of rank i is s^(-i / n), and a share of 0.1 caps none of them at 1
    np.testing.assert_allclose(tenths[1:] / tenths[:-1], 100**-0.1, rtol=0.25)
    assert tenths[0] / tenths[-1] == pytest.approx(100**0.9, rel=0.25)
    assert rates.sum() == pytest.approx(20)


def test_pressure_falls_exponentially_to_its_end() -> None:
    samples = make_samples(4, loss=[1, 2, 3, 4], epochs=11)
    selector = LossRank(pressure=100, end=1)
    found = [selector._pressure(replace(samples, epoch=epoch)) for epoch in (0, 5, 10, 12)]
    assert found == pytest.approx([100, 10, 1, 1], rel=1e-6)
    assert selector._pressure(replace(samples, epochs=None, epoch=5)) == 100


def test_no_pressure_is_a_fair_draw() -> None:
    rates = visits_of(LossRank(0.5, pressure=1), np.arange(20, dtype=np.float32))
    assert np.abs(rates - 0.5).max() < 0.1


def test_equal_losses_are_a_fair_draw() -> None:
    rates = visits_of(LossRank(0.5, pressure=1e8), np.ones(20, np.float32))
    assert np.abs(rates - 0.5).max() < 0.1


def test_the_share_is_exact_and_the_whole_share_is_everything() -> None:
    samples = make_samples(101, loss=np.arange(101), epoch=1)
    assert len(LossRank(0.5).choose(samples).places) == 51
    assert len(LossRank(1.0).choose(samples).places) == 101


def test_uncorrected_as_published_or_right_in_expectation() -> None:
    losses = np.random.default_rng(1).exponential(1, 5000).astype(np.float32)
    samples = make_samples(5000, loss=losses, epoch=1)
    means = {}
    for corrected in (False, True):
        selector = LossRank(0.3, pressure=20, corrected=corrected)
        found = [
            (chosen := make_selection(selector, replace(samples, seed=seed), clip=100)).weights
            @ losses[chosen.places]
            / len(chosen)
            for seed in range(60)
        ]
        means[corrected] = np.mean(found)
    assert means[True] == pytest.approx(losses.mean(), rel=0.01)
    assert means[False] > 1.3 * losses.mean()
    assert set(make_selection(LossRank(), samples).weights.tolist()) == {1.0}


def test_a_pressure_that_rises_is_refused() -> None:
    with pytest.raises(WrongUse, match="it must fall"):
        LossRank(pressure=2, end=3)
    with pytest.raises(WrongUse, match="at least 1"):
        LossRank(pressure=0.5, end=0.5)
