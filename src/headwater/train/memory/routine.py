"""Iterations that are known and need nothing: each saved tensor is only compared with the one of before.

Whoever gives a budget that is large enough should not notice it. As soon as something else is saved, all that
was saved so far in this iteration is taken into account, as if it had been from the start.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

import torch

from headwater.train.memory.holding import Handle, Plain

Sight = tuple[torch.Size, torch.dtype, bool]
"""What a saved tensor is known again by, and whether it is left alone."""


class Light:
    """A saved tensor of which no account is kept; `handle` is what stands for it once there is one."""

    __slots__ = ("__weakref__", "alone", "handle", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, version: int, *, alone: bool) -> None:
        self.tensor: torch.Tensor | None = tensor
        self.version, self.alone = version, alone
        self.handle: Handle | Plain | None = None


class Routine:
    """A pattern that repeats."""

    def __init__(self, sights: Sequence[Sight]) -> None:
        self._sights = tuple(sights)
        self._saved: list[weakref.ref[Light]] = []

    @property
    def saved(self) -> Iterator[Light]:
        """What was saved and is still wanted, in order."""
        return (light for ref in self._saved if (light := ref()) is not None)

    def begin(self) -> bool:
        """Another iteration, after a backward pass; False where something of the last one is still wanted."""
        if next(self.saved, None) is not None:
            return False
        self._saved = []
        return True

    def save(self, tensor: torch.Tensor) -> Light | None:
        """None for one that does not come next in the pattern."""
        place = len(self._saved)
        if place == len(self._sights):
            return None
        shape, dtype, alone = self._sights[place]
        if tensor.dtype is not dtype or tensor.shape != shape:
            return None
        # Not the tensor itself: it may own the graph that owns this.
        light = Light(tensor.detach(), tensor._version, alone=alone)
        self._saved.append(weakref.ref(light))
        return light
