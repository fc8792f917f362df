"""TrivialAugmentWide, against torchvision on uint8 tensors: no pixel may differ."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.data.randomness import Draws
from headwater.data.steps.trivial import OPERATIONS, TrivialAugmentWide
from headwater.errors import WrongUse
from pictures import photo
from referee import as_image, as_tensor, v2

SHAPES = [(48, 48, 3), (37, 53, 3), (40, 31, 1)]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("fill", [None, 7.0])
def test_each_operation_is_torchvisions(operation, interpolation, fill):
    ours = TrivialAugmentWide(interpolation=interpolation, fill=fill)
    theirs = v2.TrivialAugmentWide(interpolation=v2.InterpolationMode(interpolation), fill=fill)
    for height, width, channels in SHAPES:
        image = photo(height, width, channels=channels)
        for number, sign in ((0, 1.0), (9, -1.0), (20, 1.0), (30, -1.0)):
            expected = theirs._apply_image_or_video_transform(
                as_tensor(image),
                operation,
                ours.strength(operation, number, sign),
                interpolation=theirs.interpolation,
                fill=theirs._fill,
            )
            made = ours.apply(image, (OPERATIONS.index(operation), number, sign))
            assert (made == as_image(expected)).all(), (height, width, number, sign)


@pytest.mark.parametrize("bins", [31, 10])
def test_strengths_are_torchvisions(bins):
    for operation, (strengths, signed) in v2.TrivialAugmentWide._AUGMENTATION_SPACE.items():
        values = strengths(bins, 48, 48)
        for number in range(bins):
            expected = 0.0 if values is None else float(values[number]) * (-1 if signed else 1)
            assert TrivialAugmentWide(bins).strength(operation, number, -1.0) == expected


def test_the_operations_are_torchvisions_in_its_order():
    assert tuple(v2.TrivialAugmentWide._AUGMENTATION_SPACE) == OPERATIONS


def test_a_colour_per_channel_fills_what_is_outside():
    made = TrivialAugmentWide(fill=(10, 20, 30)).apply(photo(40, 40), (3, 30, 1.0))
    assert (made[:, 0] == (10, 20, 30)).all()


def test_every_operation_strength_and_sign_is_drawn():
    rows = TrivialAugmentWide().draw(
        Draws.of(np.arange(9000), seed=1, epoch=0, step=0), np.full((9000, 2), 9)
    )
    for column, count in ((0, 14), (1, 31)):
        assert np.bincount(rows[:, column].astype(int), minlength=count).min() > 0.7 * 9000 / count
    assert set(rows[:, 2]) == {-1.0, 1.0}


def test_float_images_are_refused():
    with pytest.raises(WrongUse, match="works on uint8 images, not float32"):
        TrivialAugmentWide().apply(photo(9, 9).astype(np.float32), (1, 1, 1.0))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [((1,), "num_magnitude_bins is 1"), ((31, "bicubic"), "interpolation is 'bicubic'; allowed: bilinear")],
)
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(WrongUse, match=text):
        TrivialAugmentWide(*arguments)
