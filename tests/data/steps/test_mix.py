"""MixUp and CutMix, against torchvision where every pair has the same share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.data.randomness import Draws
from headwater.data.steps.mix import CutMix, MixUp, cut_boxes, draw_beta, pair_draws, power
from headwater.errors import WrongUse
from pictures import photo
from referee import as_tensor, v2

KEY = {"seed": 1, "epoch": 2, "step": 3}


def batch_of(count=4):
    return torch.stack([as_tensor(photo(20, 30, seed=seed)) for seed in range(count)]).float()


def test_mixup_is_torchvisions_within_the_last_bit():
    """A share as a tensor is rounded to float32 before it is subtracted from 1, a Python number after."""
    theirs = v2.MixUp(num_classes=5)
    labels = torch.tensor([0, 3, 1, 4])
    params = {"lam": 0.3, "labels": labels, "batch_size": 4}
    mixed, soft = MixUp(num_classes=5).apply_mix(batch_of(), labels, np.tile((0.3, 0.1, 0.2), (4, 1)))
    torch.testing.assert_close(mixed, theirs.transform(batch_of(), params), rtol=3e-7, atol=0)
    torch.testing.assert_close(soft, theirs.transform(labels, params), rtol=3e-7, atol=0)


def test_cutmix_is_torchvisions():
    theirs = v2.CutMix(num_classes=5)
    labels = torch.tensor([0, 3, 1, 4])
    rows = np.tile((0.6, 0.9, 0.4), (4, 1))
    top, left, bottom, right = cut_boxes(rows, 20, 30)[0].tolist()
    share = 1.0 - (right - left) * (bottom - top) / 600
    params = {"box": (left, top, right, bottom), "lam_adjusted": share, "labels": labels, "batch_size": 4}
    mixed, soft = CutMix(num_classes=5).apply_mix(batch_of(), labels, rows)
    assert torch.equal(mixed, theirs.transform(batch_of(), params))
    torch.testing.assert_close(soft, theirs.transform(labels, params), rtol=3e-7, atol=0)


def test_the_box_is_torchvisions_for_the_same_draws():
    for share, x, y in np.random.default_rng(0).random((50, 3)):
        top, left, bottom, right = cut_boxes(np.array([[share, x, y]]), 20, 30)[0]
        half_height, half_width = int(0.5 * np.sqrt(1 - share) * 20), int(0.5 * np.sqrt(1 - share) * 30)
        assert (top, left) == (max(int(y * 20) - half_height, 0), max(int(x * 30) - half_width, 0))
        assert (bottom, right) == (min(int(y * 20) + half_height, 20), min(int(x * 30) + half_width, 30))


@pytest.mark.parametrize("step", [MixUp(0.4, 5), CutMix(1.0, 5)])
def test_a_pair_gets_the_same_draws_in_any_batch(step):
    rows = step.draw_pairs(np.array([10, 11, 12, 13]), **KEY)
    again = step.draw_pairs(np.array([99, 11, 12, 7]), **KEY)
    assert (rows[2] == again[2]).all()
    assert (rows[1] != again[1]).all()
    assert (step.draw_pairs(np.array([12, 11]), **KEY)[1] != rows[2]).all()


def test_each_sample_has_its_own_share():
    labels = torch.tensor([0, 1, 2, 3])
    rows = MixUp(1.0, 4).draw_pairs(np.arange(4), **KEY)
    mixed, soft = MixUp(1.0, 4).apply_mix(batch_of(), labels, rows)
    for position in range(4):
        share = rows[position, 0]
        expected = batch_of()[position] * share + batch_of()[position - 1] * (1 - share)
        torch.testing.assert_close(mixed[position], expected)
        torch.testing.assert_close(soft[position, position].item(), share)
        torch.testing.assert_close(soft[position].sum().item(), 1.0)


def test_targets_may_be_probabilities():
    soft = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    _, mixed = MixUp().apply_mix(batch_of(2), soft, np.array([[0.25, 0, 0], [1.0, 0, 0]]))
    torch.testing.assert_close(mixed, torch.tensor([[0.875, 0.125], [1.0, 0.0]]))


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 0.8, 1.0, 1.5, 2.0, 8.0])
def test_shares_follow_the_beta_distribution(alpha):
    count = 40_000
    values = draw_beta(pair_draws(np.arange(count), **KEY), alpha)
    assert ((values >= 0) & (values <= 1)).all()
    variance = 1 / (4 * (2 * alpha + 1))
    fourth = 3 * variance**2 * (2 * alpha + 1) / (2 * alpha + 3)
    spread = np.sqrt((fourth - variance**2) / count)
    assert abs(values.mean() - 0.5) < 4 * np.sqrt(variance / count)
    assert abs(((values - 0.5) ** 2).mean() - variance) < 5 * spread


@given(st.floats(1e-9, 1), st.floats(0, 40))
@settings(max_examples=200, deadline=None)
def test_power_by_square_roots_is_power(base, exponent):
    assert power(np.array([base]), exponent)[0] == pytest.approx(base**exponent, rel=1e-6, abs=1e-290)


def test_a_subset_of_draws_has_the_same_shares():
    draws = pair_draws(np.arange(100), **KEY)
    some = Draws(draws.key, draws.ids[[5, 50, 7]])
    assert (draw_beta(some, 0.3) == draw_beta(draws, 0.3)[[5, 50, 7]]).all()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MixUp(0), "alpha is 0"),
        (lambda: CutMix(1.0, 0), "num_classes is 0"),
        (lambda: MixUp().apply_mix(batch_of(), torch.arange(4), np.zeros((4, 3))), "pass num_classes"),
        (lambda: MixUp(1.0, 3).apply_mix(batch_of(), torch.zeros(4, 2), np.zeros((4, 3))), "have 2 classes"),
        (
            lambda: MixUp(1.0, 3).apply_mix(batch_of().byte(), torch.arange(4), np.zeros((4, 3))),
            "float batch",
        ),
        (lambda: CutMix().apply_batch(batch_of(), np.zeros((4, 3))), "mixes labels too"),
    ],
)
def test_wrong_use_is_named(make, text):
    with pytest.raises(WrongUse, match=text):
        make()
