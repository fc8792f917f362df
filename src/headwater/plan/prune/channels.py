"""The channels of a network that can go, layer by layer, in one row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse


@dataclass(frozen=True)
class Channels:
    """Layers by name, and how many channels each has; layers that must be cut alike count once."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.sizes) or not self.sizes or min(self.sizes) < 1:
            raise WrongUse(f"{len(self.names)} layers of {self.sizes} channels; each needs at least one")

    def __len__(self) -> int:
        return sum(self.sizes)

    @cached_property
    def key(self) -> str:
        """The same for the same layers of the same sizes: what a plan is made for."""
        text = "\n".join(f"{name} {size}" for name, size in zip(self.names, self.sizes, strict=True))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @cached_property
    def even(self) -> NDArray[np.float64]:
        """How far along its layer each channel stands: an order that takes the same share of every layer."""
        return np.concatenate([(np.arange(size) + 0.5) / size for size in self.sizes])

    def parts(self) -> Iterator[tuple[str, slice]]:
        """Where the channels of each layer stand in the row."""
        end = 0
        for name, size in zip(self.names, self.sizes, strict=True):
            end += size
            yield name, slice(end - size, end)

    def widths(self, keep: NDArray[np.bool_]) -> tuple[int, ...]:
        """How many channels of each layer are kept."""
        return tuple(int(keep[part].sum()) for _, part in self.parts())
