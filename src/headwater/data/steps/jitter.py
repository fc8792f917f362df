"""Steps that change colours: jitter, and conversion to grey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, ClassVar

import numpy as np

from headwater.data.randomness import Draws
from headwater.data.steps import colours
from headwater.data.steps.arguments import settle, to_float, to_range
from headwater.data.steps.base import Image, Row, Rows, Sizes, Step
from headwater.data.steps.flip import draw_coin
from headwater.data.steps.tensors import to_image, to_planes
from headwater.errors import WrongUse

_CHANGES = (colours.brightness, colours.contrast, colours.saturation, colours.hue)
_ORDERS = tuple(permutations(range(4)))

Jitter = float | Sequence[float] | None


@dataclass(frozen=True)
class ColorJitter(Step):
    """Change brightness, contrast, saturation and hue by random factors, in random order.

    A number x means factors from 1 - x to 1 + x (for hue, shifts from -x to x), two numbers the range itself.
    A row is the order's number, then the four factors.
    """

    name: ClassVar[str] = "color_jitter"
    brightness: Jitter = None
    contrast: Jitter = None
    saturation: Jitter = None
    hue: Jitter = None

    def __post_init__(self) -> None:
        settle(self, hue=_to_shifts(self.hue))
        for field in ("brightness", "contrast", "saturation"):
            settle(self, **{field: _to_factors(field, getattr(self, field))})

    def draw(self, draws: Draws, sizes: Sizes) -> Rows:
        rows = np.empty((len(draws), 5))
        rows[:, 0] = draws.integers(0, 0, len(_ORDERS))
        for change, bounds in enumerate(self._ranges()):
            neutral = 0.0 if change == 3 else 1.0
            rows[:, 1 + change] = neutral if bounds is None else draws.uniform(1 + change, *bounds)
        return rows

    def apply(self, image: Image, row: Row) -> Image:
        tensor, ranges = to_planes(image), self._ranges()
        for change in _ORDERS[int(row[0])]:
            if ranges[change] is not None:
                tensor = _CHANGES[change](tensor, float(row[1 + change]))
        return to_image(tensor)

    def _ranges(self) -> tuple[Any, ...]:
        return self.brightness, self.contrast, self.saturation, self.hue


@dataclass(frozen=True)
class Grayscale(Step):
    """The luminance, in one channel or the same in three."""

    name: ClassVar[str] = "grayscale"
    steady: ClassVar[bool] = True
    num_output_channels: int = 1

    def __post_init__(self) -> None:
        if self.num_output_channels not in (1, 3):
            raise WrongUse(f"num_output_channels is {self.num_output_channels!r}; allowed: 1, 3")

    def apply(self, image: Image, row: Row) -> Image:
        return to_image(colours.grey(to_planes(image), self.num_output_channels))


@dataclass(frozen=True)
class RandomGrayscale(Step):
    """With probability `p` the luminance, in as many channels as the image has."""

    name: ClassVar[str] = "random_grayscale"
    p: float = 0.1

    def __post_init__(self) -> None:
        settle(self, p=to_float("p", self.p, low=0.0, high=1.0))

    def draw(self, draws: Draws, sizes: Sizes) -> Rows:
        return draw_coin(draws, self.p)

    def apply(self, image: Image, row: Row) -> Image:
        return to_image(colours.grey(to_planes(image), image.shape[2])) if row[0] else image


def _to_factors(name: str, value: Jitter) -> tuple[float, float] | None:
    """The range of factors; None where it could only be 1."""
    if value is None:
        return None
    if not isinstance(value, Sequence):
        width = to_float(name, value, low=0.0)
        value = (max(1.0 - width, 0.0), 1.0 + width)
    bounds = to_range(name, value, low=0.0)
    return None if bounds == (1.0, 1.0) else bounds


def _to_shifts(value: Jitter) -> tuple[float, float] | None:
    if value is None:
        return None
    if not isinstance(value, Sequence):
        width = to_float("hue", value, low=0.0, high=0.5)
        value = (-width, width)
    bounds = to_range("hue", value, low=-0.5, high=0.5)
    return None if bounds == (0.0, 0.0) else bounds
