"""Streams of a device that is behind its host: torch's interface, with a time that the test makes pass.

Memory is that of the CPU, so bytes are there at once; what lags is what the device says about them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stream:
    """Its work is done at `time`, if it is given no more."""

    def __init__(self, device: torch.device) -> None:
        self.time = 0.0


class Lagging:
    """As `torch.cuda` is: `Stream`, `Event`, `stream`, `current_stream`. Each copy takes a second.

    The device is at `now`. It gets further when the host waits for it, or by `now` being set.
    """

    def __init__(self) -> None:
        self.Stream = Stream
        self.now = 0.0
        self.waits = 0
        self._current = Stream(torch.device("cpu"))
        device = self

        class Event:
            """A point in the work of a stream."""

            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                self.time = 0.0

            def record(self, stream: Stream) -> None:
                self.time = stream.time

            def query(self) -> bool:
                return self.time <= device.now

            def wait(self, stream: Stream) -> None:
                stream.time = max(stream.time, self.time)

            def synchronize(self) -> None:
                device.waits += 1
                device.now = max(device.now, self.time)

            def elapsed_time(self, end: Event) -> float:
                assert max(self.time, end.time) <= device.now, "torch refuses that"
                return (end.time - self.time) * 1000

        self.Event = Event

    def current_stream(self, device: torch.device) -> Stream:
        return self._current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """What is done inside is a copy."""
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before
            stream.time += 1

    @contextmanager
    def computing_on(self, stream: Stream) -> Iterator[None]:
        """The program's own choice of a stream."""
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def compute(self, seconds: float) -> None:
        """The current stream is given something to do."""
        self._current.time += seconds
