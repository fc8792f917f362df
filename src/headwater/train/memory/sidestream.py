"""Copies that a device does beside computing, in a stream of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import torch

from headwater.train.memory.streams import Mark, Streams
from headwater.train.memory.transfer import MEMORY, SMALLEST

USUAL_RATE = 1e10
"""Bytes per second, until something was carried."""


class StreamCopy:
    """A copy that a side stream was given.

    Nobody calls `record_stream` for it: the caching allocator would then keep the memory back until it sees
    that the copy is done, and take more of the device meanwhile, past the budget. Instead the tensor is held
    here until the device has come so far; or until somebody waits, and then the stream that the memory
    belongs to, the current one when the copy began, does nothing before the copy is done. Whoever gets the
    memory next gets it in that stream's order. The host never waits.
    """

    def __init__(self, streams: Streams, tensor: torch.Tensor, end: Mark) -> None:
        self.end = end
        self._streams, self._origin = streams, streams.current
        self._tensor: torch.Tensor | None = tensor
        self._asked: Mark | None = None

    @property
    def done(self) -> bool:
        return self._tensor is None or self.end.done

    @property
    def waited(self) -> float | None:
        """By the device's own time: the host runs ahead, and nearly always asks before the copy is done."""
        if self._asked is None or not self._asked.done or not self.end.done:
            return None
        return max(self.end.seconds_since(self._asked), 0.0)

    def wait(self) -> None:
        if self._tensor is None:
            return
        here = self._streams.current
        self._asked = self._streams.mark(here)
        self.end.hold_up(self._origin)
        if here != self._origin:
            self.end.hold_up(here)
            self._streams.lend(self._tensor, here)
        self._tensor = None


class SideStream:
    """One direction, and how fast it was."""

    def __init__(self, streams: Streams) -> None:
        self._streams, self._stream = streams, streams.new()
        self._rate = USUAL_RATE
        self._under_way: deque[tuple[int, Mark, Mark]] = deque()  # sizes, and no tensors

    @property
    def rate(self) -> float:
        """Bytes per second, by the device's own time."""
        while self._under_way and self._under_way[0][2].done:
            size, begin, end = self._under_way.popleft()
            seconds = max(end.seconds_since(begin), 1e-7)
            self._rate += MEMORY * (size / seconds - self._rate)
        return self._rate

    def carry(
        self, target: torch.Tensor, source: torch.Tensor, *, hold: torch.Tensor, after: Iterable[Mark] = ()
    ) -> StreamCopy:
        """Copy bytes, after all that the current stream was given so far, and after some more."""
        for mark in (self._streams.mark(), *after):
            mark.hold_up(self._stream)
        begin = self._streams.mark(self._stream)
        with self._streams.on(self._stream):
            target.copy_(source, non_blocking=True)
        end = self._streams.mark(self._stream)
        if source.numel() >= SMALLEST:
            self._under_way.append((source.numel(), begin, end))
        return StreamCopy(self._streams, hold, end)

    def close(self) -> None:
        """The host waits for what is under way."""
        self._streams.mark(self._stream).wait()
        self._under_way.clear()
