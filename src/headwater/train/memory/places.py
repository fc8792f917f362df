"""Parts of something long, such as a file: who has which, first fit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Extent:
    """A part of the spill file, or of a slab of host memory: `size` bytes of content within `room` bytes."""

    offset: int
    size: int
    room: int
    slab: int = -1

    @property
    def in_file(self) -> bool:
        return self.slab < 0


class FreeList:
    """What is free, in order of offsets; neighbours are one."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []

    @property
    def free(self) -> int:
        """Bytes in all."""
        return sum(room for _, room in self._free)

    def take(self, room: int) -> int | None:
        """The first offset with so much room, which is taken; None if there is none."""
        for index, (offset, free) in enumerate(self._free):
            if free >= room:
                rest = [(offset + room, free - room)] if free > room else []
                self._free[index : index + 1] = rest
                return offset
        return None

    def give(self, offset: int, room: int) -> None:
        """Back, or something new."""
        self._free.append((offset, room))
        self._free.sort()
        merged: list[tuple[int, int]] = []
        for begin, length in self._free:
            if merged and sum(merged[-1]) == begin:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((begin, length))
        self._free = merged
