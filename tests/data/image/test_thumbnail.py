"""A thumbnail is the mean of areas, exactly rounded, whatever the size and the layout of the picture."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from headwater.data.image.thumbnail import shrink
from headwater.errors import WrongUse
from pictures import photo

LUMA = {1: (1,), 2: (1, 1), 3: (299, 587, 114)}


def overlap(cell: int, pixel: int, cells: int, pixels: int) -> Fraction:
    """The share of a pixel's edge that lies in the cell."""
    begin, end = Fraction(cell * pixels, cells), Fraction((cell + 1) * pixels, cells)
    return max(Fraction(0), min(end, Fraction(pixel + 1)) - max(begin, Fraction(pixel)))


def exact(image: NDArray[np.uint8], edge: int) -> NDArray[np.int64]:
    """The same by fractions, pixel by pixel; half a grey is rounded up."""
    height, width, channels = image.shape
    weights = LUMA[channels]
    grey = image.astype(np.int64) @ np.array(weights)
    down = [[overlap(cell, row, edge, height) for row in range(height)] for cell in range(edge)]
    across = [[overlap(cell, column, edge, width) for column in range(width)] for cell in range(edge)]
    rows = np.array(down, object) @ grey.astype(object) @ np.array(across, object).T
    means = rows * Fraction(edge * edge, height * width * sum(weights))
    return np.array([[int(mean + Fraction(1, 2)) for mean in row] for row in means])


@pytest.mark.parametrize("size", [(7, 7), (21, 9), (1, 30), (5, 3), (23, 17), (200, 3)])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_every_cell_is_the_rounded_mean_of_its_area(size: tuple[int, int], channels: int) -> None:
    image = np.random.default_rng(1).integers(0, 256, (*size, channels), dtype=np.uint8)
    made = shrink(image, 7)
    assert (made.shape, made.dtype) == ((7, 7, 1), np.uint8)
    np.testing.assert_array_equal(made[:, :, 0], exact(image, 7))


def test_rows_one_by_one_and_all_at_once_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    image = photo(83, 107)
    made = shrink(image, 40)
    monkeypatch.setattr("headwater.data.image.thumbnail._FEW", 0)
    np.testing.assert_array_equal(shrink(image, 40), made)


def test_white_stays_white_in_a_large_picture() -> None:
    assert (shrink(np.full((3000, 4000, 3), 255, np.uint8), 40) == 255).all()


def test_a_turned_view_is_read_as_it_looks() -> None:
    image = photo(61, 83)
    np.testing.assert_array_equal(shrink(image[::-1, ::-1], 20), shrink(image, 20)[::-1, ::-1])


@pytest.mark.parametrize("image", [np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)])
def test_what_is_no_picture_is_refused(image: NDArray[np.uint8]) -> None:
    with pytest.raises(WrongUse, match="made of uint8 pixels"):
        shrink(image, 8)
