"""TrivialAugment, wide: one random operation of random strength per image.

Müller and Hutter, "TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation" (ICCV 2021), with
torchvision's operations and ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from headwater.data.randomness import Draws
from headwater.data.steps import colours, warp
from headwater.data.steps.arguments import InterpolationName, settle, to_choice, to_fill, to_int
from headwater.data.steps.base import Image, Row, Rows, Sizes, Step
from headwater.data.steps.tensors import to_image, to_planes, torch_module
from headwater.errors import WrongUse

if TYPE_CHECKING:
    import torch

OPERATIONS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)
"""A row's first number counts along these; the order is part of what a seed means."""

_RANGES = {
    "ShearX": (0.0, 0.99),
    "ShearY": (0.0, 0.99),
    "TranslateX": (0.0, 32.0),
    "TranslateY": (0.0, 32.0),
    "Rotate": (0.0, 135.0),
    "Brightness": (0.0, 0.99),
    "Color": (0.0, 0.99),
    "Contrast": (0.0, 0.99),
    "Sharpness": (0.0, 0.99),
    "Solarize": (1.0, 0.0),
}
_UNSIGNED = ("Posterize", "Solarize")

_COLOURS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "Brightness": lambda image, strength: colours.brightness(image, 1.0 + strength),
    "Color": lambda image, strength: colours.saturation(image, 1.0 + strength),
    "Contrast": lambda image, strength: colours.contrast(image, 1.0 + strength),
    "Sharpness": lambda image, strength: colours.sharpness(image, 1.0 + strength),
    "Posterize": lambda image, strength: colours.posterize(image, int(strength)),
    "Solarize": lambda image, strength: colours.solarize(image, 255.0 * strength),
    "AutoContrast": lambda image, strength: colours.autocontrast(image),
    "Equalize": lambda image, strength: colours.equalize(image),
}
_WARPS: dict[str, Callable[[float, tuple[int, int]], warp.Warp]] = {
    "ShearX": warp.shear_x,
    "ShearY": warp.shear_y,
    "TranslateX": lambda strength, size: warp.shift(float(int(strength)), 0.0),
    "TranslateY": lambda strength, size: warp.shift(0.0, float(int(strength))),
}


@dataclass(frozen=True)
class TrivialAugmentWide(Step):
    """One of fourteen operations on a uint8 image; a row is (operation, strength's number, sign)."""

    name: ClassVar[str] = "trivial_augment_wide"
    num_magnitude_bins: int = 31
    interpolation: InterpolationName = "nearest"
    fill: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        settle(self, num_magnitude_bins=to_int("num_magnitude_bins", self.num_magnitude_bins, low=2))
        settle(self, interpolation=to_choice("interpolation", self.interpolation, ("nearest", "bilinear")))
        if self.fill is not None:
            settle(self, fill=to_fill("fill", self.fill))

    def draw(self, draws: Draws, sizes: Sizes) -> Rows:
        rows = np.empty((len(draws), 3))
        rows[:, 0] = draws.integers(0, 0, len(OPERATIONS))
        rows[:, 1] = draws.integers(1, 0, self.num_magnitude_bins)
        rows[:, 2] = np.where(draws.uniform(2) < 0.5, -1.0, 1.0)
        return rows

    def apply(self, image: Image, row: Row) -> Image:
        if image.dtype != np.uint8:
            raise WrongUse(
                f"trivial_augment_wide works on uint8 images, not {image.dtype}; put ToDtype after it"
            )
        operation = OPERATIONS[int(row[0])]
        if operation == "Identity":
            return image
        strength = self.strength(operation, int(row[1]), row[2])
        return to_image(self._change(to_planes(image), operation, strength))

    def strength(self, operation: str, number: int, sign: float) -> float:
        """The number of degrees, pixels, bits or the factor that a row stands for."""
        strengths = _strengths(operation, self.num_magnitude_bins)
        if not strengths:
            return 0.0
        return strengths[number] if operation in _UNSIGNED else strengths[number] * float(sign)

    def _change(self, image: torch.Tensor, operation: str, strength: float) -> torch.Tensor:
        if operation in _COLOURS:
            return _COLOURS[operation](image, strength)
        mode, fill = str(self.interpolation), cast(warp.Fill, self.fill)
        if operation == "Rotate":
            return warp.rotate(image, strength, mode=mode, fill=fill)
        by = _WARPS[operation](strength, (image.shape[1], image.shape[2]))
        return warp.warp(image, by, mode=mode, fill=fill)


@lru_cache(maxsize=256)
def _strengths(operation: str, bins: int) -> tuple[float, ...]:
    """The strengths to choose from, in torch's float32 as torchvision has them."""
    torch = torch_module()
    if operation == "Posterize":
        return tuple((8 - torch.arange(bins) / ((bins - 1) / 6)).round().tolist())
    if operation not in _RANGES:
        return ()
    return tuple(torch.linspace(*_RANGES[operation], bins).tolist())
