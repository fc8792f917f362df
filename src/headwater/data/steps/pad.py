"""Borders around an image: of a fixed width, or as wide as a later crop needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from headwater.data.steps.arguments import settle, to_choice, to_fill, to_flag, to_padding, to_size
from headwater.data.steps.base import Image, Row, Rows, Sizes, Step

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")


@dataclass(frozen=True)
class Pad(Step):
    """A border of the given widths: one number, (left and right, top and bottom), or all four sides."""

    name: ClassVar[str] = "pad"
    exact: ClassVar[bool] = True
    steady: ClassVar[bool] = True
    padding: int | Sequence[int]
    fill: float | Sequence[float] = 0.0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        settle(self, padding=to_padding("padding", self.padding), fill=to_fill("fill", self.fill))
        settle(self, padding_mode=to_choice("padding_mode", self.padding_mode, PADDING_MODES))

    def out_sizes(self, sizes: Sizes, rows: Rows) -> Sizes:
        left, top, right, bottom = cast(tuple[int, int, int, int], self.padding)
        padded: Sizes = sizes + np.array((top + bottom, left + right))
        return padded

    def apply(self, image: Image, row: Row) -> Image:
        left, top, right, bottom = cast(tuple[int, int, int, int], self.padding)
        return surround(image, (top, bottom), (left, right), fill=self.fill, mode=self.padding_mode)


@dataclass(frozen=True)
class PadToFit(Step):
    """A border, and where the image is still smaller than `size`, as much again as it lacks.

    With `whole`, each of two opposite sides gets all that lacks (torchvision's `RandomCrop` with
    `pad_if_needed`); without, they share it (torchvision's `CenterCrop`).
    """

    name: ClassVar[str] = "pad_to_fit"
    exact: ClassVar[bool] = True
    steady: ClassVar[bool] = True
    size: tuple[int, int]
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    fill: float | Sequence[float] = 0.0
    padding_mode: str = "constant"
    whole: bool = False

    def __post_init__(self) -> None:
        settle(self, size=to_size("size", self.size), padding=to_padding("padding", self.padding))
        settle(self, fill=to_fill("fill", self.fill), whole=to_flag("whole", self.whole))
        settle(self, padding_mode=to_choice("padding_mode", self.padding_mode, PADDING_MODES))

    def out_sizes(self, sizes: Sizes, rows: Rows) -> Sizes:
        left, top, right, bottom = self.padding
        padded: Sizes = sizes + np.array((top + bottom, left + right))
        padded += np.maximum(np.array(self.size) - padded, 0) * (2 if self.whole else 1)
        return padded

    def apply(self, image: Image, row: Row) -> Image:
        left, top, right, bottom = self.padding
        rows = self._border(image.shape[0], self.size[0], top, bottom)
        columns = self._border(image.shape[1], self.size[1], left, right)
        if not any(rows) and not any(columns):
            return image
        return surround(image, rows, columns, fill=self.fill, mode=self.padding_mode)

    def _border(self, edge: int, wanted: int, before: int, after: int) -> tuple[int, int]:
        lacking = max(wanted - edge - before - after, 0)
        if self.whole:
            return before + lacking, after + lacking
        return before + lacking // 2, after + (lacking + 1) // 2


def surround(
    image: Image, rows: tuple[int, int], columns: tuple[int, int], *, fill: float | Sequence[float], mode: str
) -> Image:
    """The image with (before, after) more rows and columns; allocates the result and nothing else."""
    height, width, channels = image.shape
    if mode != "constant":
        return image[_indices(height, *rows, mode)[:, None], _indices(width, *columns, mode)]
    shape = height + rows[0] + rows[1], width + columns[0] + columns[1], channels
    padded: Image
    if fill == 0.0:
        padded = np.zeros(shape, image.dtype)
    else:
        padded = np.empty(shape, image.dtype)
        padded[:] = fill
    padded[rows[0] : rows[0] + height, columns[0] : columns[0] + width] = image
    return padded


@lru_cache(maxsize=64)
def _indices(edge: int, before: int, after: int, mode: str) -> NDArray[np.intp]:
    """Which row (or column) of the image each row of the padded image repeats."""
    return np.pad(np.arange(edge), (before, after), mode=mode)  # type: ignore[call-overload, no-any-return]
