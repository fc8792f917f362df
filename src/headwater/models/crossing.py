"""What crosses a cut through frozen layers: a tensor, by its name in the graph."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from headwater.errors import ModelNotFound

Shape = tuple[int, ...]

_HALF = 2  # bytes of a value that crosses
_NAME_SHOWN = 128


@dataclass(frozen=True)
class Crossing:
    """A cut: the name of its tensor in the graph, the tensor's shape for one image, and how far along it is.

    `work` counts the multiplications of convolutions and matrix products before it, for one image.
    """

    name: str
    shape: Shape
    work: int

    @property
    def width(self) -> int:
        """How many numbers cross for an image."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """What crosses for an image, in half precision."""
        return _HALF * self.width


@dataclass(frozen=True)
class Crossings:
    """All cuts of frozen layers, in their order, and the `work` of all layers."""

    all: tuple[Crossing, ...]
    work: int

    def __iter__(self) -> Iterator[Crossing]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(crossing.name for crossing in self.all)

    def find(self, name: str) -> Crossing:
        """The cut of this name; raises `ModelNotFound`, and says which there are."""
        for crossing in self.all:
            if crossing.name == name:
                return crossing
        there = ", ".join(self.names) or "none"
        raise ModelNotFound(f"these layers have no cut {name[:_NAME_SHOWN]!r}; there are: {there}")
