"""Resize: torch's uint8 interpolation, the kernel that torchvision uses on tensors.

It is integer arithmetic, so its bytes are the same on every CPU. On PIL images torchvision uses
Pillow's kernel instead, whose pixels differ from these by at most 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headwater.data.steps.arguments import InterpolationName, settle, to_choice, to_flag, to_int, to_size
from headwater.data.steps.base import Image, Row, Rows, Sizes, Step
from headwater.data.steps.tensors import functional, to_batch, to_image
from headwater.errors import WrongUse

INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic")
_SMOOTH = ("bilinear", "bicubic")


@dataclass(frozen=True)
class Resize(Step):
    """To an exact (height, width), or by the shorter edge, with a limit on the longer one.

    With `size=None` the longer edge becomes `max_size`. `antialias` matters to bilinear and bicubic only.
    """

    name: ClassVar[str] = "resize"
    exact: ClassVar[bool] = True
    steady: ClassVar[bool] = True
    size: int | Sequence[int] | None
    interpolation: InterpolationName = "bilinear"
    max_size: int | None = None
    antialias: bool = True

    def __post_init__(self) -> None:
        settle(self, interpolation=to_choice("interpolation", self.interpolation, INTERPOLATIONS))
        settle(self, size=_to_target(self.size), antialias=to_flag("antialias", self.antialias))
        if self.max_size is not None:
            settle(self, max_size=to_int("max_size", self.max_size, low=1))
        self._check_limit()

    def _check_limit(self) -> None:
        if self.size is None and self.max_size is None:
            raise WrongUse("size is None; then max_size must be the length of the longer edge")
        if isinstance(self.size, tuple) and self.max_size is not None:
            raise WrongUse(f"max_size is {self.max_size}, but size {self.size} gives both edges; drop one")
        if isinstance(self.size, int) and self.max_size is not None and self.max_size <= self.size:
            raise WrongUse(f"max_size is {self.max_size}; it must exceed size, which is {self.size}")

    def out_sizes(self, sizes: Sizes, rows: Rows) -> Sizes:
        if isinstance(self.size, tuple):
            return np.broadcast_to(np.array(self.size, np.int64), sizes.shape)
        short, long = sizes.min(axis=1), sizes.max(axis=1)
        if isinstance(self.size, int):
            new_short, new_long = np.full_like(short, self.size), (self.size * long / short).astype(np.int64)
        else:
            new_short, new_long = short, long
        if self.max_size is not None:
            over = new_long > self.max_size if self.size is not None else np.ones(len(long), np.bool_)
            new_short = np.where(over, (self.max_size * new_short / new_long).astype(np.int64), new_short)
            new_long = np.where(over, self.max_size, new_long)
        tall = sizes[:, :1] >= sizes[:, 1:]
        new = np.where(tall, np.stack((new_long, new_short), 1), np.stack((new_short, new_long), 1))
        return np.maximum(new, 1)

    def target(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the result for one image."""
        if isinstance(self.size, tuple):
            return self.size
        done = self.out_sizes(np.array([[height, width]]), np.empty((1, 0)))[0]
        return int(done[0]), int(done[1])

    def apply(self, image: Image, row: Row) -> Image:
        target = self.target(image.shape[0], image.shape[1])
        if image.shape[:2] == target:
            return image
        smooth = self.interpolation in _SMOOTH
        done = functional().interpolate(
            to_batch(image),
            size=target,
            mode=self.interpolation,
            align_corners=False if smooth else None,
            antialias=smooth and self.antialias,
        )
        return to_image(done[0])


def _to_target(size: object) -> int | tuple[int, int] | None:
    """None, the shorter edge (also as a sequence of one), or (height, width)."""
    if size is None:
        return None
    height, width = to_size("size", size)
    both = isinstance(size, Sequence) and len(size) == 2
    return (height, width) if both else height
