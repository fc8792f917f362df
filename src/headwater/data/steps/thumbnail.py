"""A small grey picture of the whole one, for whoever wants to know what is alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headwater.data.image.fingerprint import EDGE
from headwater.data.image.thumbnail import shrink
from headwater.data.steps.arguments import settle, to_int
from headwater.data.steps.base import Image, Row, Rows, Sizes, Step


@dataclass(frozen=True)
class Thumbnail(Step):
    """Every cell of an `edge` x `edge` grid is the mean grey of its area."""

    name: ClassVar[str] = "thumbnail"
    exact: ClassVar[bool] = True
    steady: ClassVar[bool] = True
    edge: int = EDGE

    def __post_init__(self) -> None:
        settle(self, edge=to_int("edge", self.edge, low=1))

    def out_sizes(self, sizes: Sizes, rows: Rows) -> Sizes:
        return np.full_like(sizes, self.edge)

    def apply(self, image: Image, row: Row) -> Image:
        return shrink(image, self.edge)
