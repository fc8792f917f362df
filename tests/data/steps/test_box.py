"""Crop boxes: torchvision's algorithm, drawn in bulk."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.data.randomness import Draws
from headwater.data.steps.box import CentralBox, RandomArea, RandomBox
from headwater.errors import SampleError, WrongUse
from pictures import photo
from referee import F, as_image, as_tensor


def draws_of(ids, epoch=0):
    return Draws.of(np.asarray(ids, np.int64), seed=3, epoch=epoch, step=1)


def tiled(height, width, count):
    return np.tile(np.array([[height, width]]), (count, 1))


def by_the_book(area_draws, ratio_draws, height, width, ratio):
    """Torchvision's loop for one sample: height and width of the box, or None."""
    for area, aspect in zip(area_draws, ratio_draws, strict=True):
        w = round(math.sqrt(height * width * area * aspect))
        h = round(math.sqrt(height * width * area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return h, w, True
    if width / height < ratio[0]:
        return round(width / ratio[0]), width, False
    if width / height > ratio[1]:
        return height, round(height * ratio[1]), False
    return height, width, False


@pytest.mark.parametrize("size", [(375, 500), (500, 333), (40, 400), (400, 40), (7, 5), (1, 1)])
def test_random_area_is_torchvisions_loop_in_bulk(size):
    step, count = RandomArea(), 300
    draws, sizes = draws_of(range(count)), tiled(*size, count)
    rows = step.draw(draws, sizes)
    areas = np.stack([draws.uniform(2 * k, *step.scale) for k in range(10)], axis=1)
    aspects = np.stack([draws.log_uniform(2 * k + 1, *step.ratio) for k in range(10)], axis=1)
    for row, area, aspect in zip(rows, areas, aspects, strict=True):
        height, width, random = by_the_book(area, aspect, *size, step.ratio)
        assert (row[2], row[3]) == (height, width)
        if not random:
            assert (row[0], row[1]) == ((size[0] - height) // 2, (size[1] - width) // 2)


def test_extreme_shapes_do_fall_back_and_others_retry():
    rows = RandomArea().draw(draws_of(range(500)), tiled(60, 500, 500))
    central = (rows[:, 2] == 60) & (rows[:, 3] == 80) & (rows[:, 1] == 210)
    assert central.sum() > 50
    assert (~central).sum() > 50


def test_random_area_covers_scale_and_ratio():
    count = 20_000
    rows = RandomArea(scale=(0.2, 0.5), ratio=(0.5, 2.0)).draw(
        draws_of(range(count)), tiled(1000, 1000, count)
    )
    area, aspect = rows[:, 2] * rows[:, 3] / 1e6, rows[:, 3] / rows[:, 2]
    assert 0.198 < area.min() < 0.205
    assert 0.495 < area.max() < 0.502
    assert 0.498 < aspect.min() < 0.51
    assert 1.96 < aspect.max() < 2.01
    assert abs(np.log(aspect).mean()) < 0.01
    assert abs(area.mean() - 0.35) < 0.005
    assert (rows[:, 0] + rows[:, 2]).max() <= 1000
    assert (rows[:, 0] + rows[:, 2]).max() > 990


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_subset_draws_what_the_whole_draws(data):
    shapes = st.tuples(st.integers(1, 900), st.integers(1, 900))
    sizes = np.array(data.draw(st.lists(shapes, min_size=1, max_size=30)))
    ids = np.array(data.draw(st.lists(st.integers(0, 2**63 - 1), min_size=len(sizes), max_size=len(sizes))))
    chosen = np.array(data.draw(st.lists(st.integers(0, len(ids) - 1), min_size=1, max_size=40)))
    for step in (RandomArea(), RandomArea((0.9, 1.0), (0.2, 5.0)), RandomBox((8, 9)), CentralBox((3, 4))):
        whole = step.draw(draws_of(ids), sizes)
        assert (step.draw(draws_of(ids[chosen]), sizes[chosen]) == whole[chosen]).all()


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 2**63 - 1))
@settings(max_examples=60, deadline=None)
def test_a_box_of_random_area_always_lies_inside(height, width, id):
    top, left, h, w = RandomArea().draw(draws_of([id]), np.array([[height, width]]))[0]
    assert h >= 1
    assert w >= 1
    assert 0 <= top <= height - h
    assert 0 <= left <= width - w


def test_random_box_reaches_every_place():
    rows = RandomBox((30, 20)).draw(draws_of(range(2000)), tiled(33, 22, 2000))
    assert set(map(tuple, rows)) == {(t, x, 30, 20) for t in range(4) for x in range(3)}


@pytest.mark.parametrize("size", [(10, 12), (11, 13), (14, 9), (15, 31)])
def test_central_box_is_torchvisions_center_crop(size):
    image, step = photo(*size), CentralBox((9, 8))
    row = step.draw(draws_of([1]), np.array([size]))[0]
    assert (step.apply(image, row) == as_image(F.center_crop(as_tensor(image), [9, 8]))).all()


def test_a_crop_is_a_view_of_the_image():
    image = photo(20, 30)
    part = RandomArea().apply(image, [2.0, 3.0, 10.0, 12.0])
    assert (part == as_image(F.crop(as_tensor(image), 2, 3, 10, 12))).all()
    assert np.shares_memory(part, image)


def test_an_image_smaller_than_the_crop_is_refused_with_its_size():
    row = RandomBox((32, 32)).draw(draws_of([5]), np.array([[20, 40]]))[0]
    with pytest.raises(SampleError, match="20 x 40 pixels is smaller than the crop of 32 x 32"):
        RandomBox((32, 32)).apply(photo(20, 40), row)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"scale": (0.5, 0.1)}, "scale is"),
        ({"scale": (-1, 1)}, "scale is -1"),
        ({"ratio": (0, 1)}, "ratio is 0"),
        ({"ratio": 2}, "ratio is 2"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(WrongUse, match=text):
        RandomArea(**arguments)
