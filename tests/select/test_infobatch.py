"""Samples below the mean are left out at random, and nothing changes in expectation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from columns import make_samples
from headwater.errors import WrongUse
from headwater.select.infobatch import InfoBatch
from headwater.select.selecting import make_selection

LOSSES = [0.1, 0.2, 0.3, 0.4, 9.0, 8.0]


def test_the_published_rule() -> None:
    samples = make_samples(6, loss=LOSSES, epoch=1, seed=3)
    choice = InfoBatch().choose(samples)
    below = [place for place in choice.places if place < 4]
    assert choice.places.tolist() == [*below, 4, 5]
    assert choice.chances is not None
    assert choice.chances.tolist() == [0.5] * len(below) + [1, 1]
    kept = np.mean([len(InfoBatch().choose(replace(samples, seed=seed)).places) - 2 for seed in range(400)])
    assert kept == pytest.approx(2, abs=0.2)


def test_the_weighted_loss_is_that_of_all_in_expectation() -> None:
    rng = np.random.default_rng(0)
    losses = rng.exponential(1, 400).astype(np.float32)
    found = []
    for seed in range(400):
        selection = make_selection(InfoBatch(0.5), make_samples(400, loss=losses, epoch=1, seed=seed))
        found.append(np.mean(losses[selection.places] * selection.weights, dtype=np.float64))
    error = np.std(found) / np.sqrt(len(found))
    assert np.mean(found) == pytest.approx(losses.mean(), abs=4 * error + 1e-3)
    # a test that would hold without the weights too would say nothing
    plain = [
        losses[
            make_selection(InfoBatch(0.5), make_samples(400, loss=losses, epoch=1, seed=seed)).places
        ].mean()
        for seed in range(20)
    ]
    assert np.mean(plain) > 1.1 * losses.mean()


@pytest.mark.parametrize("value", [0.1, 2.302585, 1e-6])
@pytest.mark.parametrize("count", [3, 1000, 100_003])
def test_equal_losses_leave_nothing_out(value: float, count: int) -> None:
    # summed in 32 bits, the mean of equal losses can lie above them, and all would be below the mean
    choice = InfoBatch().choose(make_samples(count, loss=np.full(count, value), epoch=1))
    assert len(choice.places) == count
    assert choice.chances is None


def test_the_end_is_whole() -> None:
    samples = make_samples(6, loss=LOSSES, epochs=16, seed=1)
    lengths = [len(InfoBatch(0.99).choose(replace(samples, epoch=epoch)).places) for epoch in range(1, 16)]
    assert lengths[-2:] == [6, 6]
    assert max(lengths[:-2]) < 6


def test_unknown_and_infinite_losses_stay_and_do_not_move_the_mean() -> None:
    samples = make_samples(8, loss=[*LOSSES, np.nan, np.inf], epoch=1)
    for seed in range(20):
        choice = InfoBatch(0.9).choose(replace(samples, seed=seed))
        assert choice.places.tolist()[-4:] == [4, 5, 6, 7]
        assert "below the mean, 3;" in choice.reason


def test_nothing_is_left_out_by_a_ratio_of_nothing() -> None:
    assert len(InfoBatch(0).choose(make_samples(6, loss=LOSSES, epoch=1)).places) == 6
    with pytest.raises(WrongUse, match="below 1"):
        InfoBatch(1)
