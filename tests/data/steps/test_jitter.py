"""Colour jitter and grey, against torchvision on uint8 tensors: no pixel may differ."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from headwater.data.randomness import Draws
from headwater.data.steps import colours
from headwater.data.steps.jitter import ColorJitter, Grayscale, RandomGrayscale
from headwater.errors import WrongUse
from pictures import photo
from referee import F, as_image, as_tensor, v2

SHAPES = [(64, 64, 3), (37, 53, 3), (31, 40, 1), (5, 3, 3), (1, 1, 3)]
FACTORS = [0.0, 0.31, 0.99, 1.0, 1.7]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("kind", [torch.uint8, torch.float32], ids=str)
def test_each_colour_function_is_torchvisions(shape, factor, kind):
    image = F.to_dtype(as_tensor(photo(*shape[:2], channels=shape[2])), kind, scale=True)
    for ours, theirs in (
        (colours.brightness, F.adjust_brightness),
        (colours.contrast, F.adjust_contrast),
        (colours.saturation, F.adjust_saturation),
        (colours.sharpness, F.adjust_sharpness),
    ):
        assert torch.equal(ours(image, factor), theirs(image, factor)), ours.__name__
    assert torch.equal(colours.hue(image, factor / 4 - 0.25), F.adjust_hue(image, factor / 4 - 0.25))


@pytest.mark.parametrize("values", [(0, 0), (255, 255), (9, 9), (9, 10), (0, 255)], ids=str)
def test_images_of_one_or_two_values_are_stretched_as_by_torchvision(values):
    image = torch.tensor(values, dtype=torch.uint8).repeat(3, 12, 15)
    image[1] = values[0]
    assert torch.equal(colours.autocontrast(image), F.autocontrast(image))
    assert torch.equal(colours.equalize(image), F.equalize(image))


def jitter_by_torchvision(image, row):
    changes = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    for change in list(permutations(range(4)))[int(row[0])]:
        image = changes[change](image, row[1 + change])
    return image


def test_jitter_with_drawn_parameters_is_torchvisions():
    step = ColorJitter(0.4, 0.4, (0.2, 1.9), 0.1)
    rows = step.draw(Draws.of(np.arange(24), seed=1, epoch=0, step=2), np.full((24, 2), 40))
    assert len(set(rows[:, 0])) > 10
    for number, row in enumerate(rows.tolist()):
        image = photo(41, 43, seed=number)
        theirs = jitter_by_torchvision(as_tensor(image), row)
        assert (step.apply(image, row) == as_image(theirs)).all()


def test_the_ranges_are_those_of_torchvision():
    ours, theirs = ColorJitter(0.4, 2.0, (0.5, 0.7), 0.1), v2.ColorJitter(0.4, 2.0, (0.5, 0.7), 0.1)
    rows = ours.draw(Draws.of(np.arange(5000), seed=1, epoch=0, step=2), np.full((5000, 2), 40))
    bounds = (theirs.brightness, theirs.contrast, theirs.saturation, theirs.hue)
    for column, (low, high) in enumerate(bounds, start=1):
        width = high - low
        assert low <= rows[:, column].min() < low + width / 100
        assert high - width / 100 < rows[:, column].max() <= high
    assert np.bincount(rows[:, 0].astype(int), minlength=24).min() > 130


def test_a_change_that_was_not_asked_for_is_not_made():
    image, step = photo(20, 20), ColorJitter(brightness=0)
    assert step == ColorJitter()
    assert (step.apply(image, [7.0, 0.5, 0.5, 0.5, 0.5]) == image).all()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("wanted", [1, 3])
def test_grayscale_is_torchvisions(channels, wanted):
    image = photo(40, 31, channels=channels)
    theirs = F.rgb_to_grayscale(as_tensor(image), num_output_channels=wanted)
    assert (Grayscale(wanted).apply(image, ()) == as_image(theirs)).all()


def test_random_grayscale_keeps_the_channels():
    image, step = photo(20, 30), RandomGrayscale(0.3)
    grey = step.apply(image, [1.0])
    assert (grey == as_image(F.rgb_to_grayscale(as_tensor(image), num_output_channels=3))).all()
    assert step.apply(image, [0.0]) is image
    rows = step.draw(Draws.of(np.arange(20_000), seed=1, epoch=0, step=2), np.full((20_000, 2), 40))
    assert abs(rows.mean() - 0.3) < 0.015


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ColorJitter(-1), "brightness is -1; it must be a number of at least 0"),
        (lambda: ColorJitter(hue=0.6), "hue is 0.6; it must be a number from 0 to 0.5"),
        (lambda: ColorJitter(contrast=(2, 1)), "contrast is"),
        (lambda: ColorJitter(saturation="a"), "saturation is 'a'"),
        (lambda: Grayscale(2), "num_output_channels is 2"),
    ],
)
def test_wrong_arguments_are_named(make, text):
    with pytest.raises(WrongUse, match=text):
        make()
