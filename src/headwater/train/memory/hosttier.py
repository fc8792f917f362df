"""A device's memory to host memory and back; what does not fit there goes on to a file."""

from __future__ import annotations

import torch

from headwater.plan.memory import Rates
from headwater.train.memory.places import Extent
from headwater.train.memory.sidestream import SideStream
from headwater.train.memory.slabs import Slabs
from headwater.train.memory.spill import SpillFile
from headwater.train.memory.stagedtier import StagedTier
from headwater.train.memory.storages import bytes_of
from headwater.train.memory.streams import Mark, Streams
from headwater.train.memory.tier import Move


class HostTier:
    """Two levels: slabs of host memory, then a file.

    Side streams know no order among themselves. A fetch waits for the copy that it brings back; a copy into a
    place that was given back waits for fetches from such places that are still under way.
    """

    def __init__(self, slabs: Slabs, beyond: StagedTier, streams: Streams) -> None:
        self._slabs, self._beyond = slabs, beyond
        self._out, self._back = SideStream(streams), SideStream(streams)
        self._written: dict[Extent, Mark] = {}
        self._fetched: dict[Extent, Mark] = {}
        self._unread: list[Mark] = []
        self._near = self._far = 0  # bytes that went to each level

    @property
    def rates(self) -> Rates:
        """Of both levels together, by what went to each so far; the device's own hardware carries."""
        beyond = self._beyond.rates
        return Rates(self._mean(self._out.rate, beyond.write), self._mean(self._back.rate, beyond.read))

    @property
    def has_memory(self) -> bool:
        return self._slabs.limit > 0

    def prepare(self, size: int) -> int:
        """Disk for what host memory has no room for."""
        return self._slabs.limit + self._beyond.prepare(max(size - self._slabs.limit, 0))

    def reserve(self, size: int) -> Extent:
        """Raises `SpillFailed` if it does not fit into host memory and the disk is full."""
        found = self._slabs.reserve(size)
        if found is not None:
            self._near += size
            return found
        found = self._beyond.reserve(size)
        self._far += size
        return found

    def release(self, extent: Extent) -> None:
        if extent.in_file:
            self._beyond.release(extent)
            return
        self._written.pop(extent, None)
        fetched = self._fetched.pop(extent, None)
        if fetched is not None and not fetched.done:
            self._unread.append(fetched)
        self._slabs.release(extent)

    def write(self, extent: Extent, tensor: torch.Tensor) -> Move:
        """Begin to copy the whole storage of a tensor."""
        if extent.in_file:
            return self._beyond.write(extent, tensor)
        self._unread = [mark for mark in self._unread if not mark.done]
        place, source = self._slabs.view(extent), bytes_of(tensor)
        copy = self._out.carry(place, source, hold=tensor, after=self._unread)
        self._written[extent] = copy.end
        return copy

    def read(self, extent: Extent, device: torch.device) -> tuple[torch.Tensor, Move]:
        """Begin to bring it back, as bytes in a new storage."""
        if extent.in_file:
            return self._beyond.read(extent, device)
        tensor = torch.empty(extent.size, dtype=torch.uint8, device=device)
        place, written = self._slabs.view(extent), self._written[extent]
        copy = self._back.carry(tensor, place, hold=tensor, after=[written])
        self._fetched[extent] = copy.end
        return tensor, copy

    def close(self) -> None:
        self._out.close()
        self._back.close()
        self._beyond.close()
        self._slabs.close()

    def _mean(self, near: float, far: float) -> float:
        if not self._near + self._far:
            return near
        return (self._near + self._far) / (self._near / near + self._far / far)


def open_host_tier(file: SpillFile, streams: Streams, host: int) -> HostTier:
    """With so many bytes of host memory; pinned, where there is a device that copies by itself."""
    pinned = streams.device.type != "cpu"
    return HostTier(Slabs(host, pinned=pinned), StagedTier(file, streams, pinned=pinned), streams)
