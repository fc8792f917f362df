"""Resize, against torchvision on uint8 tensors: no pixel may differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.data.steps.resize import INTERPOLATIONS, Resize
from headwater.errors import WrongUse
from pictures import photo
from referee import F, as_image, as_tensor, v2

NO_ROWS = np.empty((1, 0))


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("channels", [1, 3])
def test_resize_is_torchvisions(interpolation, antialias, channels):
    for height, width in ((90, 120), (31, 33), (20, 200)):
        image = photo(height, width, channels=channels)
        ours = Resize((48, 64), interpolation, antialias=antialias).apply(image, ())
        mode = v2.InterpolationMode(interpolation)
        theirs = F.resize(as_tensor(image), [48, 64], interpolation=mode, antialias=antialias)
        assert (ours == as_image(theirs)).all()
        assert ours.flags.c_contiguous


@pytest.mark.parametrize(
    "view",
    [
        lambda image: image[5:80, 7:100],
        lambda image: image[:, ::-1],
        lambda image: image[::-1, ::-1][3:70],
        lambda image: np.frombuffer(image.tobytes(), np.uint8).reshape(image.shape),
        lambda image: image.transpose(1, 0, 2),
        lambda image: image[:, :, :1],
    ],
    ids=["crop", "flip", "both flips of a crop", "read-only", "turned", "one channel"],
)
def test_any_view_of_an_image_can_be_resized(view):
    part = view(photo(90, 120))
    ours = Resize((50, 40)).apply(part, ())
    assert (ours == as_image(F.resize(as_tensor(part), [50, 40]))).all()


@given(st.integers(1, 700), st.integers(1, 700), st.integers(1, 300), st.none() | st.integers(1, 300))
@settings(max_examples=200, deadline=None)
def test_the_size_by_the_shorter_edge_is_torchvisions(height, width, size, more):
    step = Resize(size, max_size=None if more is None else size + more)
    theirs = F._geometry._compute_resized_output_size((height, width), size=[size], max_size=step.max_size)
    ours = step.out_sizes(np.array([[height, width]]), NO_ROWS)[0].tolist()
    assert ours == [max(edge, 1) for edge in theirs]
    assert tuple(ours) == step.target(height, width)


@pytest.mark.parametrize(("height", "width"), [(30, 50), (50, 30), (40, 40), (64, 20)])
def test_the_size_by_the_longer_edge_is_torchvisions(height, width):
    image, step = photo(height, width), Resize(None, max_size=64)
    theirs = F.resize(as_tensor(image), None, max_size=64)
    assert (step.apply(image, ()) == as_image(theirs)).all()


def test_an_image_that_has_the_size_is_passed_on_untouched():
    image = photo(30, 40)
    assert Resize((30, 40)).apply(image, ()) is image


def test_interpolation_may_be_torchvisions_enum():
    assert Resize(8, v2.InterpolationMode.BICUBIC) == Resize((8,), "bicubic")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0,), "size is 0; it must be a whole number of at least 1"),
        (((1, 2, 3),), "size is"),
        (("12",), "size is '12'"),
        ((12.5,), "size is 12.5"),
        ((None,), "size is None"),
        ((12, "lanczos"), "interpolation is 'lanczos'; allowed: bicubic, bilinear"),
        ((12, "bilinear", 12), "max_size is 12; it must exceed size"),
        (((12, 12), "bilinear", 20), "max_size is 20, but size"),
        ((12, "bilinear", None, "yes"), "antialias is 'yes'"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(WrongUse, match=text):
        Resize(*arguments)
