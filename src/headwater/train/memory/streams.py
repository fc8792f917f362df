"""Streams and events of a device, as far as carrying tensors needs them.

`torch.get_device_module` gives them for every device in one form. Those of a CPU do nothing, take no
arguments and know no time: there, what is asked for is done when the call returns.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

import torch


class Mark:
    """A point in the work of a stream: all that it was given before."""

    def __init__(self, event: Any, *, timed: bool) -> None:
        self._event, self._timed = event, timed
        self._seconds = time.perf_counter()

    @property
    def done(self) -> bool:
        """Whether the device has come so far; the host does not wait."""
        return bool(self._event.query())

    def wait(self) -> None:
        """The host waits until the device has come so far."""
        self._event.synchronize()

    def hold_up(self, stream: Any) -> None:
        """What the stream is given from now on comes after this; the host does not wait."""
        self._event.wait(stream)

    def seconds_since(self, other: Mark) -> float:
        """Of the device's time, negative if the other came later; both must be done."""
        if not self._timed:
            return self._seconds - other._seconds
        return float(other._event.elapsed_time(self._event)) / 1000


class Streams:
    """What one device has of them; `module` is torch's for its kind.

    The device `lags` if it does what it is told later than the host's call returns.
    """

    def __init__(self, device: torch.device, module: Any = None) -> None:
        self.device = device
        self._module = module if module is not None else torch.get_device_module(device)
        self.lags = hasattr(self._module.Event, "elapsed_time")

    def new(self) -> Any:
        """A stream of one's own."""
        return self._module.Stream(self.device) if self.lags else self._module.Stream()

    @property
    def current(self) -> Any:
        """The stream that this thread gives its work to."""
        return self._module.current_stream(self.device)

    def mark(self, stream: Any = None) -> Mark:
        """After all that the stream, or the current one, was given so far."""
        event = self._module.Event(enable_timing=True) if self.lags else self._module.Event()
        event.record(self.current if stream is None else stream)
        return Mark(event, timed=self.lags)

    def on(self, stream: Any) -> AbstractContextManager[None]:
        """What this thread does inside goes to the stream."""
        context: AbstractContextManager[None] = self._module.stream(stream)
        return context

    def lend(self, tensor: torch.Tensor, stream: Any) -> None:
        """The tensor's memory is not given to anybody else before this stream is done with it."""
        if tensor.device.type != "cpu":
            tensor.record_stream(stream)


class Clock:
    """The host's clock. While `exact`, it is looked at when the current stream has done what it was given.

    That makes a device that lags behind take one thing after another, as only a measured iteration should.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.exact = True

    @property
    def sure(self) -> bool:
        """Whether differences are the time that computing took."""
        return self.exact or not self._streams.lags

    def __call__(self) -> float:
        if self.exact and self._streams.lags:
            self._streams.mark().wait()
        return time.perf_counter()

    def since(self, begin: float) -> float:
        """Seconds that an operation took; without end where that is not known."""
        return self() - begin if self.sure else float("inf")
