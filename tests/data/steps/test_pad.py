"""Borders, against torchvision's `pad`."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.data.steps.pad import PADDING_MODES, Pad, PadToFit
from headwater.errors import WrongUse
from pictures import photo
from referee import F, as_image, as_tensor

NO_ROWS = np.empty((1, 0))


@pytest.mark.parametrize("mode", PADDING_MODES)
@pytest.mark.parametrize("padding", [3, (2, 5), (1, 2, 3, 4), 0])
@pytest.mark.parametrize("channels", [1, 3])
def test_pad_is_torchvisions(mode, padding, channels):
    image = photo(12, 9, channels=channels)
    step = Pad(padding, fill=7, padding_mode=mode)
    ours = step.apply(image, ())
    theirs = F.pad(as_tensor(image), list(step.padding), fill=7, padding_mode=mode)
    assert (ours == as_image(theirs)).all()
    assert ours.shape[:2] == tuple(step.out_sizes(np.array([[12, 9]]), NO_ROWS)[0])


def test_fill_may_be_one_value_per_channel():
    image = photo(6, 7)
    theirs = F.pad(as_tensor(image), [2, 2, 2, 2], fill=[10, 20, 30])
    assert (Pad(2, fill=(10, 20, 30)).apply(image, ()) == as_image(theirs)).all()


def test_a_border_wider_than_the_image_can_be_reflected():
    assert Pad(9, padding_mode="reflect").apply(photo(4, 5), ()).shape == (22, 23, 3)


@pytest.mark.parametrize("size", [(5, 20), (20, 5), (20, 21), (6, 5), (5, 5)])
def test_sharing_what_lacks_is_what_center_crop_does(size):
    image, step = photo(*size), PadToFit((12, 11))
    padded = step.apply(image, ())
    top, left = round((padded.shape[0] - 12) / 2), round((padded.shape[1] - 11) / 2)
    theirs = as_image(F.center_crop(as_tensor(image), [12, 11]))
    assert (padded[top : top + 12, left : left + 11] == theirs).all()
    assert padded.shape[:2] == tuple(step.out_sizes(np.array([size]), NO_ROWS)[0])


@pytest.mark.parametrize("mode", PADDING_MODES)
def test_each_side_gets_all_that_lacks_if_asked(mode):
    image, step = photo(7, 20), PadToFit((12, 12), (1, 0, 1, 0), padding_mode=mode, whole=True)
    theirs = F.pad(as_tensor(image), [1, 5, 1, 5], padding_mode=mode)
    assert (step.apply(image, ()) == as_image(theirs)).all()
    assert step.out_sizes(np.array([[7, 20]]), NO_ROWS).tolist() == [[17, 22]]


def test_an_image_that_fits_is_passed_on_untouched():
    image = photo(12, 13)
    assert PadToFit((12, 11)).apply(image, ()) is image


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((-1,), "padding is -1"),
        (((1, 2, 3),), "padding is .1, 2, 3."),
        ((1, "red"), "fill is 'red'"),
        ((1, 0, "mirror"), "padding_mode is 'mirror'; allowed: constant"),
        ((1.5,), "padding is 1.5"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(WrongUse, match=text):
        Pad(*arguments)
