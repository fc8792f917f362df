"""Stand-ins for the streams of a device that is behind its host, with torch's interface.

There is no accelerator where these tests run. What is computed is computed by the CPU, at once; the stand-ins
differ in what they say about copies in side streams, and when they do them.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class Stream:
    """Its work is done at `time`, if it is given no more."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.time = 0.0


class Lagging:
    """Copies are done at once, but the device says when they are: a test makes its time pass.

    Each copy takes a second. The device is at `now`. It gets further when the host waits for it, or by `now`
    being set.
    """

    def __init__(self) -> None:
        self.Stream = Stream
        self.now = 0.0
        self.waits = 0
        self._usual = Stream()
        self._thread = threading.local()
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
        found: Stream = getattr(self._thread, "current", self._usual)
        return found

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """What is done inside is a copy."""
        with self.computing_on(stream):
            yield
        stream.time += 1

    @contextmanager
    def computing_on(self, stream: Stream) -> Iterator[None]:
        """The program's own choice of a stream."""
        before = self.current_stream(torch.device("cpu"))
        self._thread.current = stream
        try:
            yield
        finally:
            self._thread.current = before

    def compute(self, seconds: float) -> None:
        """The current stream is given something to do."""
        self.current_stream(torch.device("cpu")).time += seconds


class Queue:
    """A side stream: copies, and events to wait for, of which `done` are done. A computing one has none."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.work: list[_Copy | Any] = []
        self.done = 0

    def run(self, until: int) -> None:
        while self.done < until:
            self.work[self.done].run()
            self.done += 1


class _Copy:
    """By address, as a device does it. Memory that was given away in between is not what it was."""

    def __init__(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._target, self._source, self._size = target.data_ptr(), source.data_ptr(), source.nbytes
        self._storages = [StorageWeakRef(one.untyped_storage()) for one in (target, source)]  # type: ignore[no-untyped-call]

    def run(self) -> None:
        assert not any(one.expired() for one in self._storages), "memory was given away before it was copied"  # type: ignore[no-untyped-call]
        ctypes.memmove(self._target, self._source, self._size)


class _Catch(TorchDispatchMode):
    """Copies are queued."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._queue = queue

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is torch.ops.aten.copy_.default, "a side stream only copies"
        self._queue.work.append(_Copy(*args[:2]))
        return args[0]


class Postponing:
    """Copies are done as late as can be: when computing, or the host, is told to wait for them."""

    def __init__(self) -> None:
        self.Stream = Queue
        self.postponed = 0
        self._lock = threading.RLock()
        self._computing = Queue()
        device = self

        class Event:
            """A point in the work of a stream."""

            def __init__(self, *, enable_timing: bool) -> None:
                self._queue, self._place = device._computing, 0

            def record(self, stream: Queue) -> None:
                self._queue, self._place = stream, len(stream.work)

            def query(self) -> bool:
                return self._queue.done >= self._place

            def run(self) -> None:
                with device._lock:
                    self._queue.run(self._place)

            def wait(self, stream: Queue) -> None:
                with device._lock:
                    if stream is device._computing:
                        device.postponed += not self.query()
                        self.run()
                    else:
                        stream.work.append(self)

            synchronize = run

            def elapsed_time(self, end: Event) -> float:
                return 1.0

        self.Event = Event

    def current_stream(self, device: torch.device) -> Queue:
        return self._computing

    @contextmanager
    def stream(self, stream: Queue) -> Iterator[None]:
        with self._lock, _Catch(stream):
            yield
