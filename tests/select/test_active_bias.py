"""Chances by the deviation of the target's probability."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from columns import make_samples
from headwater.errors import WrongUse
from headwater.select.active_bias import ActiveBias, _weigh
from headwater.select.samples import Samples
from headwater.select.selecting import make_selection


def test_the_published_weight() -> None:
    deviation, seen = [0.4, 0.1, 0.0, np.nan], np.array([2, 5, 5, 1], np.int32)
    found = _weigh(make_samples(4, deviation=deviation, seen=seen))
    own = [np.sqrt(0.4**2 + 0.4**4 / 1), np.sqrt(0.1**2 + 0.1**4 / 4), 0.0]
    assert found[:3].tolist() == pytest.approx(np.array(own) + np.mean(own), rel=1e-6)
    assert np.isnan(found[3])


def test_samples_come_as_often_as_they_vary() -> None:
    deviation = np.repeat(np.float32([0, 0.1, 0.3]), 60)
    samples = make_samples(180, deviation=deviation, seen=np.full(180, 100, np.int32), epoch=4)
    visits, weights = np.zeros(180), _weigh(samples)
    for seed in range(800):
        visits[ActiveBias(0.1).choose(replace(samples, seed=seed)).places] += 1
    rates = visits.reshape(3, 60).mean(axis=1) / 800
    np.testing.assert_allclose(rates, 18 * weights[[0, 60, 120]] / weights.sum(), rtol=0.06)


def test_nothing_varies_a_fair_draw() -> None:
    choice = ActiveBias(0.5).choose(make_samples(10, deviation=np.zeros(10), epoch=4))
    assert len(choice.places) == 5


def test_samples_that_were_not_seen_twice_always_come() -> None:
    deviation = np.where(np.arange(100) < 10, np.nan, 0.1)
    choice = ActiveBias(0.1).choose(make_samples(100, deviation=deviation, epoch=4))
    assert choice.places[:10].tolist() == list(range(10))
    assert len(choice.places) == 10 + 9
    assert choice.chances is None


def test_after_one_epoch_nothing_can_vary_yet() -> None:
    told = {"probability": np.full(10, 0.5), "seen": np.ones(10, np.int32)}
    assert (
        len(make_selection(ActiveBias(0.5), Samples.of(np.arange(10), np.arange(10), epoch=1, **told))) == 10
    )
    with pytest.raises(WrongUse, match="learns from 'deviation'"):
        make_selection(ActiveBias(0.5), Samples.of(np.arange(10), np.arange(10), epoch=2, **told))


def test_corrected_by_chances() -> None:
    samples = make_samples(4, deviation=[0.1, 0.1, 0.5, 0.5], seen=np.full(4, 9, np.int32), epoch=4)
    choice = ActiveBias(0.5, corrected=True).choose(samples)
    assert choice.chances is not None
    assert len(choice.chances) == len(choice.places) == 2
