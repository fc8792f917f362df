"""Mirror images."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.data.randomness import Draws
from headwater.data.steps.flip import RandomHorizontalFlip, RandomVerticalFlip
from headwater.errors import WrongUse
from pictures import photo
from referee import F, as_image, as_tensor


@pytest.mark.parametrize(
    ("step", "referee"),
    [(RandomHorizontalFlip(), F.horizontal_flip), (RandomVerticalFlip(), F.vertical_flip)],
)
def test_a_flip_is_torchvisions_and_a_view(step, referee):
    image = photo(9, 14)
    assert (step.apply(image, [1.0]) == as_image(referee(as_tensor(image)))).all()
    assert np.shares_memory(step.apply(image, [1.0]), image)
    assert step.apply(image, [0.0]) is image


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_flips_happen_with_probability_p(p):
    draws = Draws.of(np.arange(40_000), seed=1, epoch=2, step=3)
    for step in (RandomHorizontalFlip(p), RandomVerticalFlip(p)):
        rows = step.draw(draws, np.ones((40_000, 2), np.int64))
        assert abs(rows.mean() - p) < (0.01 if 0 < p < 1 else 1e-12)


@pytest.mark.parametrize("p", [-0.1, 1.1, "half", None, True])
def test_p_must_be_a_probability(p):
    with pytest.raises(WrongUse, match=r"p is .*; it must be a number from 0 to 1"):
        RandomHorizontalFlip(p)
