"""Transforms that are several steps: torchvision's name and arguments on one side, steps on the other.

The steps are separate so that a sample can leave the store between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.data.steps.arguments import (
    InterpolationName,
    settle,
    to_choice,
    to_fill,
    to_flag,
    to_padding,
    to_range,
    to_size,
)
from headwater.data.steps.base import Step
from headwater.data.steps.box import CentralBox, RandomArea, RandomBox, to_ratio
from headwater.data.steps.pad import PADDING_MODES, Pad, PadToFit
from headwater.data.steps.resize import INTERPOLATIONS, Resize


class Compound(ABC):
    """A transform that `Compose` replaces by its steps."""

    @abstractmethod
    def steps(self) -> tuple[Step, ...]:
        """The steps that do what the transform says, in order."""


@dataclass(frozen=True)
class RandomResizedCrop(Compound):
    """A box of random area (share of the image) and aspect ratio, resized to `size`."""

    size: int | Sequence[int]
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: InterpolationName = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        settle(self, size=to_size("size", self.size), antialias=to_flag("antialias", self.antialias))
        settle(self, scale=to_range("scale", self.scale, low=0.0), ratio=to_ratio(self.ratio))
        settle(self, interpolation=to_choice("interpolation", self.interpolation, INTERPOLATIONS))

    def steps(self) -> tuple[Step, ...]:
        box = RandomArea(scale=to_range("scale", self.scale), ratio=to_range("ratio", self.ratio))
        return box, Resize(self.size, interpolation=self.interpolation, antialias=self.antialias)


@dataclass(frozen=True)
class RandomCrop(Compound):
    """A box of `size` at a random place, after a border if `padding` or `pad_if_needed` ask for one.

    An image smaller than the crop is an error of that sample unless `pad_if_needed`.
    """

    size: int | Sequence[int]
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False
    fill: float | Sequence[float] = 0.0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        settle(self, size=to_size("size", self.size), fill=to_fill("fill", self.fill))
        settle(self, pad_if_needed=to_flag("pad_if_needed", self.pad_if_needed))
        settle(self, padding_mode=to_choice("padding_mode", self.padding_mode, PADDING_MODES))
        if self.padding is not None:
            settle(self, padding=to_padding("padding", self.padding))

    def steps(self) -> tuple[Step, ...]:
        size, padding = to_size("size", self.size), to_padding("padding", self.padding or 0)
        box = RandomBox(size)
        if self.pad_if_needed:
            fit = PadToFit(size, padding, fill=self.fill, padding_mode=self.padding_mode, whole=True)
            return fit, box
        if any(padding):
            return Pad(padding, fill=self.fill, padding_mode=self.padding_mode), box
        return (box,)


@dataclass(frozen=True)
class CenterCrop(Compound):
    """The box of `size` in the middle; a smaller image gets a black border first."""

    size: int | Sequence[int]

    def __post_init__(self) -> None:
        settle(self, size=to_size("size", self.size))

    def steps(self) -> tuple[Step, ...]:
        size = to_size("size", self.size)
        return PadToFit(size), CentralBox(size)
