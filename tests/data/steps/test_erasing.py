"""Random erasing, against torchvision's `erase`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from headwater.data.randomness import Draws
from headwater.data.steps.erasing import RandomErasing
from headwater.errors import WrongUse
from pictures import photo
from referee import F, as_tensor


def draws_of(ids):
    return Draws.of(np.asarray(ids, np.int64), seed=3, epoch=1, step=4)


def batch_of(count):
    return torch.stack([as_tensor(photo(40, 50, seed=seed)) for seed in range(count)]).float()


@pytest.mark.parametrize("value", [0, 3.5, (1, 2, 3)])
def test_the_drawn_boxes_are_erased_as_torchvision_does(value):
    step = RandomErasing(p=0.7, value=value)
    rows = step.draw(draws_of(range(12)), np.full((12, 2), (40, 50)))
    done = step.apply_batch(batch_of(12), rows)
    paint = torch.tensor(value if isinstance(value, tuple) else (value,), dtype=torch.float32)[:, None, None]
    for image, row, made in zip(batch_of(12), rows.astype(int).tolist(), done, strict=True):
        assert torch.equal(made, F.erase(image, *row[:4], v=paint) if row[2] else image)
    assert 4 <= np.count_nonzero(rows[:, 2]) < 12


def test_boxes_follow_torchvisions_loop():
    step, count = RandomErasing(p=1.0), 200
    draws = draws_of(range(count))
    rows = step.draw(draws, np.full((count, 2), (40, 50)))
    areas = np.stack([draws.uniform(2 * k, *step.scale) for k in range(10)], axis=1)
    aspects = np.stack([draws.log_uniform(2 * k + 1, *step.ratio) for k in range(10)], axis=1)
    for row, area, aspect in zip(rows, areas, aspects, strict=True):
        tries = [
            (round(math.sqrt(2000 * a * r)), round(math.sqrt(2000 * a / r)))
            for a, r in zip(area, aspect, strict=True)
        ]
        height, width = next((h, w) for h, w in tries if h < 40 and w < 50)
        assert (row[2], row[3]) == (height, width)


def test_noise_belongs_to_the_sample_not_to_the_batch():
    step, sizes = RandomErasing(p=1.0, value="random"), np.full((6, 2), (40, 50))
    rows = step.draw(draws_of(range(6)), sizes)
    whole = step.apply_batch(batch_of(6), rows)
    some = step.apply_batch(batch_of(6)[[4, 2]], step.draw(draws_of([4, 2]), sizes[:2]))
    assert torch.equal(some, whole[[4, 2]])
    top, left, height, width = rows[2, :4].astype(int)
    noise = whole[2, :, top : top + height, left : left + width]
    assert abs(noise.mean()) < 0.3
    assert 0.7 < noise.std() < 1.3
    assert not torch.equal(step.apply_batch(batch_of(6), step.draw(draws_of(range(6, 12)), sizes)), whole)


def test_erasing_happens_with_probability_p():
    rows = RandomErasing(p=0.25).draw(draws_of(range(20_000)), np.full((20_000, 2), 64))
    assert abs(np.count_nonzero(rows[:, 2]) / 20_000 - 0.25) < 0.015
    share = (rows[:, 2] * rows[:, 3])[rows[:, 2] > 0] / 64**2
    assert share.min() > 0.015
    assert share.max() < 0.34


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: RandomErasing(2), "p is 2"),
        (lambda: RandomErasing(scale=(0.1, 1.5)), "scale is 1.5"),
        (lambda: RandomErasing(value="noise"), "value is 'noise'"),
        (
            lambda: RandomErasing(value=(1, 2)).apply_batch(batch_of(1), np.array([[0, 0, 5, 5, 1]])),
            "3 channels",
        ),
    ],
)
def test_wrong_arguments_are_named(make, text):
    with pytest.raises(WrongUse, match=text):
        make()
