"""Gaussian blur, against torchvision on uint8 tensors: no pixel may differ."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.data.randomness import Draws
from headwater.data.steps.blur import GaussianBlur
from headwater.errors import SampleError, WrongUse
from pictures import photo
from referee import F, as_image, as_tensor


@pytest.mark.parametrize("kernel", [(3, 3), (7, 11), (23, 1)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("sigma", [0.1, 0.77, 2.0])
def test_blur_is_torchvisions(kernel, channels, sigma):
    image = photo(40, 37, channels=channels)
    theirs = F.gaussian_blur(as_tensor(image), list(kernel), [sigma, sigma])
    assert (GaussianBlur(kernel).apply(image, [sigma]) == as_image(theirs)).all()


def test_sigma_is_drawn_from_its_range():
    draws = Draws.of(np.arange(5000), seed=1, epoch=0, step=0)
    rows = GaussianBlur(5, (0.5, 1.5)).draw(draws, np.full((5000, 2), 9))
    assert 0.5 <= rows.min() < 0.51
    assert 1.49 < rows.max() < 1.5
    assert (GaussianBlur(5, 0.7).draw(draws, np.full((5000, 2), 9)) == 0.7).all()


def test_an_image_smaller_than_the_kernel_is_refused_with_its_size():
    with pytest.raises(SampleError, match="5 x 30 pixels is too small for a blur of 11 x 11"):
        GaussianBlur(11).apply(photo(5, 30), [1.0])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [((4,), "kernel_size is 4"), ((3, 0), "sigma is 0"), ((3, (2, 1)), "sigma is .2, 1.")],
)
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(WrongUse, match=text):
        GaussianBlur(*arguments)
