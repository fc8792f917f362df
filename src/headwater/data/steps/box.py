"""Boxes: steps that keep a part of the image, and the drawing of boxes by area and aspect ratio.

A row is (top, left, height, width). The crop itself is a view, so it costs nothing; the decoder may
use the row to decode no more than the box.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from headwater.data.randomness import Draws
from headwater.data.steps.arguments import settle, to_float, to_range, to_size
from headwater.data.steps.base import Image, Row, Rows, Sizes, Step
from headwater.errors import SampleError

TRIES = 10
"""How often torchvision draws an area and an aspect ratio before it gives up."""

Fits = Callable[[NDArray[np.float64], NDArray[np.float64], Sizes], NDArray[np.bool_]]
_TOP, _LEFT = 2 * TRIES, 2 * TRIES + 1  # draws 2k and 2k + 1 are the area and the aspect ratio of try k


class Box(Step):
    """What all boxes share: the row says where, the view is the result."""

    exact: ClassVar[bool] = True
    crops: ClassVar[bool] = True

    def out_sizes(self, sizes: Sizes, rows: Rows) -> Sizes:
        return rows[:, 2:4].astype(np.int64)

    def apply(self, image: Image, row: Row) -> Image:
        top, left, height, width = map(int, row)
        part = image[top : top + height, left : left + width]
        # A slice past the end is silently shorter: that image was smaller than the crop.
        if part.shape[0] != height or part.shape[1] != width:
            raise _too_small(image, height, width)
        return part


@dataclass(frozen=True)
class RandomArea(Box):
    """A box of random area and aspect ratio, as in torchvision's `RandomResizedCrop`."""

    name: ClassVar[str] = "random_area"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0)

    def __post_init__(self) -> None:
        settle(self, scale=to_range("scale", self.scale, low=0.0), ratio=to_ratio(self.ratio))

    def draw(self, draws: Draws, sizes: Sizes) -> Rows:
        # The aspect ratio of a crop is width / height; that of an erased box is height / width.
        widths, heights, found = draw_edges(draws, sizes, scale=self.scale, ratio=self.ratio, fits=_inside)
        rows = place(draws, sizes, np.stack((heights, widths), axis=1))
        if not found.all():
            rows[~found] = _central(sizes[~found], self.ratio)
        return rows


@dataclass(frozen=True)
class RandomBox(Box):
    """A box of a given size at a random place, as in torchvision's `RandomCrop`."""

    name: ClassVar[str] = "random_box"
    size: tuple[int, int]

    def __post_init__(self) -> None:
        settle(self, size=to_size("size", self.size))

    def draw(self, draws: Draws, sizes: Sizes) -> Rows:
        edges = np.broadcast_to(np.asarray(self.size, np.float64), (len(draws), 2))
        # An image that is too small gets the box at its corner; `apply` refuses it with its size.
        return place(draws, np.maximum(sizes, self.size), edges)


@dataclass(frozen=True)
class CentralBox(Box):
    """The box of a given size in the middle, as in torchvision's `CenterCrop`."""

    name: ClassVar[str] = "central_box"
    steady: ClassVar[bool] = True
    size: tuple[int, int]

    def __post_init__(self) -> None:
        settle(self, size=to_size("size", self.size))

    def draw(self, draws: Draws, sizes: Sizes) -> Rows:
        rows = np.empty((len(sizes), 4))
        rows[:, :2] = np.round(np.maximum(sizes - self.size, 0) / 2.0)
        rows[:, 2:] = self.size
        return rows


def draw_edges(
    draws: Draws, sizes: Sizes, *, scale: tuple[float, float], ratio: tuple[float, float], fits: Fits
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Two edges of a box of random area, first / second = aspect ratio, and whether one was found.

    The first try is drawn for all, further ones only for those that it did not fit.
    """
    first, second = np.zeros(len(sizes)), np.zeros(len(sizes))
    found = np.zeros(len(sizes), np.bool_)
    left = np.arange(len(sizes))
    areas = (sizes[:, 0] * sizes[:, 1]).astype(np.float64)
    for attempt in range(TRIES):
        some = Draws(draws.key, draws.ids[left])
        area = areas[left] * some.uniform(2 * attempt, *scale)
        aspect = some.log_uniform(2 * attempt + 1, *ratio)
        first[left], second[left] = np.round(np.sqrt(area * aspect)), np.round(np.sqrt(area / aspect))
        found[left] = fits(first[left], second[left], sizes[left])
        left = left[~found[left]]
        if not len(left):
            break
    return first, second, found


def place(draws: Draws, sizes: Sizes, edges: NDArray[np.float64]) -> Rows:
    """Boxes with the given edges at random places inside the images."""
    room = np.maximum(sizes - edges.astype(np.int64), 0) + 1
    rows = np.empty((len(sizes), 4))
    rows[:, 0] = draws.integers(_TOP, 0, room[:, 0])
    rows[:, 1] = draws.integers(_LEFT, 0, room[:, 1])
    rows[:, 2:] = edges
    return rows


def to_ratio(value: object) -> tuple[float, float]:
    """An aspect ratio's range: both ends above 0."""
    to_float("ratio", min(to_range("ratio", value)), low=1e-6)
    return to_range("ratio", value)


def _inside(widths: NDArray[np.float64], heights: NDArray[np.float64], sizes: Sizes) -> NDArray[np.bool_]:
    return (heights > 0) & (heights <= sizes[:, 0]) & (widths > 0) & (widths <= sizes[:, 1])


def _central(sizes: Sizes, ratio: tuple[float, float]) -> Rows:
    """The largest central box whose aspect ratio is allowed: what is left when no try fitted."""
    heights, widths = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
    aspect = widths / heights
    tall, wide = aspect < ratio[0], aspect > ratio[1]
    rows = np.empty((len(sizes), 4))
    rows[:, 2] = np.where(tall, np.maximum(np.round(widths / ratio[0]), 1), heights)
    rows[:, 3] = np.where(wide, np.maximum(np.round(heights * ratio[1]), 1), widths)
    rows[:, :2] = (sizes - rows[:, 2:].astype(np.int64)) // 2
    return rows


def _too_small(image: Image, height: int, width: int) -> SampleError:
    return SampleError(
        f"image of {image.shape[0]} x {image.shape[1]} pixels is smaller than the crop of {height} x {width}"
        "; pass pad_if_needed=True, or resize first"
    )
