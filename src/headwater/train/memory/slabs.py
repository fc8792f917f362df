"""A pool of host memory: a few large slabs, made when they are needed and used again and again.

Memory that a device can copy to while the host does something else is pinned, and pinning takes milliseconds,
so no tensor gets a pinned piece of its own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch

from headwater.train.memory.places import Extent, FreeList

ALIGNMENT = 4096
SLAB = 256 * 2**20
"""Bytes of a slab, unless less is left or more is asked for; a power of two, because torch rounds what it
pins up to one."""

logger = logging.getLogger(__name__)


@dataclass
class _Slab:
    memory: torch.Tensor
    places: FreeList = field(default_factory=FreeList)


class Slabs:
    """Places in at most `limit` bytes of host memory, first fit."""

    def __init__(self, limit: int, *, pinned: bool, slab: int = SLAB) -> None:
        self.limit, self._pinned, self._slab = limit, pinned, slab
        self._slabs: list[_Slab] = []

    @property
    def taken(self) -> int:
        """Bytes of host memory that are taken."""
        return sum(one.memory.numel() for one in self._slabs)

    @property
    def used(self) -> int:
        """Bytes of places that are taken."""
        return self.taken - sum(one.places.free for one in self._slabs)

    def reserve(self, size: int) -> Extent | None:
        """A place for so many bytes; None if there is none within the limit."""
        room = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        for number, slab in enumerate(self._slabs):
            offset = slab.places.take(room)
            if offset is not None:
                return Extent(offset, size, room, number)
        return self.reserve(size) if self._grow(room) else None

    def release(self, extent: Extent) -> None:
        """Give a place back."""
        self._slabs[extent.slab].places.give(extent.offset, extent.room)

    def view(self, extent: Extent) -> torch.Tensor:
        """The bytes of a place."""
        return self._slabs[extent.slab].memory[extent.offset : extent.offset + extent.size]

    def close(self) -> None:
        """All memory goes back to the system. Nothing may be under way."""
        pinned = self._pinned and bool(self._slabs)
        self._slabs = []
        if pinned:  # torch would keep it for whoever pins next
            torch.accelerator.empty_host_cache()

    def _grow(self, room: int) -> bool:
        least = _power_of_two(room)
        size, left = max(least, self._slab), self.limit - self.taken
        while size > left and size > least:
            size //= 2
        if size > left:
            return False
        try:
            memory = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=self._pinned)
        except (MemoryError, RuntimeError) as error:
            self.limit = self.taken
            logger.warning("no more than %d bytes of host memory are there to be had: %s", self.limit, error)
            return False
        slab = _Slab(memory)
        slab.places.give(0, size)
        self._slabs.append(slab)
        return True


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
