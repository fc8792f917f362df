"""Iterations that are known and need nothing: each saved tensor is only compared with the one of before.

Whoever gives a budget that is large enough should not notice it. As soon as something else is saved, all that
was saved so far in this iteration is taken into account, as if it had been from the start.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from headwater.train.memory.holding import Handle, Plain

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Kinds that have a storage for sure."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a saved tensor is known again by.

    `size` is that of its storage, `twin` the place of the first one in the iteration that lies in the same
    storage, which may be itself, and `alone` says that no account is kept of it.
    """

    shape: torch.Size
    dtype: torch.dtype
    size: int
    twin: int
    alone: bool


class Sights:
    """Those of one iteration, in order, while their storages are in use."""

    def __init__(self) -> None:
        self.seen: list[Sight] = []
        self._twins: dict[int, int] = {}

    def add(self, tensor: torch.Tensor, *, alone: bool) -> None:
        size, twin = self.place(tensor, len(self.seen))
        self.seen.append(Sight(tensor.shape, tensor.dtype, size, twin, alone))

    def place(self, tensor: torch.Tensor, number: int) -> tuple[int, int]:
        """The size of its storage, and the first place at which that was seen."""
        if tensor.layout is not torch.strided or type(tensor) not in PLAIN:
            return 0, number
        storage = tensor.untyped_storage()
        return storage.nbytes(), self._twins.setdefault(storage._cdata, number)


class Light:
    """A saved tensor of which no account is kept; `handle` is what stands for it once there is one."""

    __slots__ = ("__weakref__", "alone", "handle", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, version: int, *, alone: bool) -> None:
        self.tensor: torch.Tensor | None = tensor
        self.version, self.alone = version, alone
        self.handle: Handle | Plain | None = None


class Routine:
    """A pattern that repeats. `is_alone` says of a tensor whether it may be left alone now."""

    def __init__(self, sights: Sequence[Sight], is_alone: Callable[[torch.Tensor], bool]) -> None:
        self._sights, self._is_alone = tuple(sights), is_alone
        self._now = Sights()
        self._saved: list[weakref.ref[Light]] = []

    @property
    def saved(self) -> Iterator[Light]:
        """What was saved and is still wanted, in order."""
        return (light for ref in self._saved if (light := ref()) is not None)

    def begin(self) -> bool:
        """Another iteration, after a backward pass; False where something of the last one is still wanted."""
        if next(self.saved, None) is not None:
            return False
        self._saved, self._now = [], Sights()
        return True

    def save(self, tensor: torch.Tensor) -> Light | None:
        """None for one that does not come next in the pattern."""
        place = len(self._saved)
        if place == len(self._sights):
            return None
        known = self._sights[place]
        if tensor.dtype is not known.dtype or tensor.shape != known.shape:
            return None
        if self._now.place(tensor, place) != (known.size, known.twin):
            return None
        if known.alone and not self._is_alone(tensor):
            return None
        # Not the tensor itself: it may own the graph that owns this.
        light = Light(tensor.detach(), tensor._version, alone=known.alone)
        self._saved.append(weakref.ref(light))
        return light
