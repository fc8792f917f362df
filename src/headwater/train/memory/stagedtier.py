"""A device's memory to a file and back, through a piece of host memory for each way."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headwater.plan.memory import Rates
from headwater.train.memory.places import Extent
from headwater.train.memory.spill import SpillFile
from headwater.train.memory.storages import bytes_of
from headwater.train.memory.streams import Mark, Streams
from headwater.train.memory.transfer import Lane, Transfer, open_lanes

PIECE = 8 * 2**20
"""Bytes; a power of two, because torch rounds what it pins up to one."""


class StagedTier:
    """A lane's thread copies piece by piece, and waits for the device each time: a disk is slower by far."""

    def __init__(self, file: SpillFile, streams: Streams, *, pinned: bool, piece: int = PIECE) -> None:
        self._file = file
        out, back = open_lanes("headwater-stage-out", "headwater-stage-back")
        self._out = _Stage(out, streams, pinned=pinned, piece=piece)
        self._back = _Stage(back, streams, pinned=pinned, piece=piece)
        self._streams = streams

    @property
    def rates(self) -> Rates:
        return Rates(self._out.lane.rate, self._back.lane.rate)

    def prepare(self, size: int) -> int:
        return self._file.prepare(size)

    def reserve(self, size: int) -> Extent:
        return self._file.reserve(size)

    def release(self, extent: Extent) -> None:
        self._file.release(extent)

    def write(self, extent: Extent, tensor: torch.Tensor) -> Transfer:
        """Begin to copy the whole storage of a tensor, after what the current stream was given so far."""
        source, start = bytes_of(tensor), self._streams.mark()
        work = Transfer(lambda: self._write(extent, source, start), extent.size, tensor)
        return self._out.lane.send(work)

    def read(self, extent: Extent, device: torch.device) -> tuple[torch.Tensor, Transfer]:
        """Begin to bring it back, as bytes in a new storage."""
        tensor = torch.empty(extent.size, dtype=torch.uint8, device=device)
        # Not the tensor itself: copies would count as changes of it.
        target, start = bytes_of(tensor), self._streams.mark()
        work = Transfer(lambda: self._read(extent, target, start), extent.size, tensor)
        return tensor, self._back.lane.send(work)

    def close(self) -> None:
        self._out.close()
        self._back.close()
        self._file.close()

    def _write(self, extent: Extent, source: torch.Tensor, start: Mark) -> None:
        for begin, part in self._out.pieces(extent, start):
            piece = self._out.memory[: part.size]
            self._out.copy(piece, source[begin : begin + part.size])
            self._file.write(part, piece.data_ptr())

    def _read(self, extent: Extent, target: torch.Tensor, start: Mark) -> None:
        for begin, part in self._back.pieces(extent, start):
            piece = self._back.memory[: part.size]
            self._file.read(part, piece.data_ptr())
            self._back.copy(target[begin : begin + part.size], piece)


class _Stage:
    """One direction: a thread, a stream, and a piece of host memory that is there from the first transfer."""

    def __init__(self, lane: Lane, streams: Streams, *, pinned: bool, piece: int) -> None:
        self.lane = lane
        self.memory = torch.empty(0)
        self._streams, self._stream = streams, streams.new()
        self._pinned, self._piece = pinned, piece

    def pieces(self, extent: Extent, start: Mark) -> Iterator[tuple[int, Extent]]:
        """Parts of the file, and where they begin in the tensor."""
        if not self.memory.numel():
            self.memory = torch.empty(self._piece, dtype=torch.uint8, device="cpu", pin_memory=self._pinned)
        start.hold_up(self._stream)
        for begin in range(0, extent.size, self._piece):
            size = min(self._piece, extent.size - begin)
            yield begin, Extent(extent.offset + begin, size, size)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """To its end: the piece is used again."""
        with self._streams.on(self._stream):
            target.copy_(source, non_blocking=True)
        self._streams.mark(self._stream).wait()

    def close(self) -> None:
        self.lane.close()
        self.memory = torch.empty(0)
