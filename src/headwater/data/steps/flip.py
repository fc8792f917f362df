"""Mirror images: a flip is a view with a negative stride and copies nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headwater.data.randomness import Draws
from headwater.data.steps.arguments import settle, to_float
from headwater.data.steps.base import Image, Row, Rows, Sizes, Step


def draw_coin(draws: Draws, p: float) -> Rows:
    """One column: 1 with probability `p`, else 0."""
    return (draws.uniform(0) < p).astype(np.float64)[:, None]


@dataclass(frozen=True)
class RandomHorizontalFlip(Step):
    """Mirror left and right with probability `p`."""

    name: ClassVar[str] = "random_horizontal_flip"
    exact: ClassVar[bool] = True
    p: float = 0.5

    def __post_init__(self) -> None:
        settle(self, p=to_float("p", self.p, low=0.0, high=1.0))

    def draw(self, draws: Draws, sizes: Sizes) -> Rows:
        return draw_coin(draws, self.p)

    def apply(self, image: Image, row: Row) -> Image:
        return image[:, ::-1] if row[0] else image


@dataclass(frozen=True)
class RandomVerticalFlip(Step):
    """Mirror top and bottom with probability `p`."""

    name: ClassVar[str] = "random_vertical_flip"
    exact: ClassVar[bool] = True
    p: float = 0.5

    def __post_init__(self) -> None:
        settle(self, p=to_float("p", self.p, low=0.0, high=1.0))

    def draw(self, draws: Draws, sizes: Sizes) -> Rows:
        return draw_coin(draws, self.p)

    def apply(self, image: Image, row: Row) -> Image:
        return image[::-1] if row[0] else image
