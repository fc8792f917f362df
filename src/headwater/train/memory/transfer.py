"""Lanes: a thread that carries one tensor after another, out of memory or back, and how fast it was."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import torch

from headwater.plan.memory import Rates
from headwater.train.memory.places import Extent
from headwater.train.memory.spill import SpillFile
from headwater.train.memory.threads import start_thread

USUAL_RATE = 1e9
"""Bytes per second, until something was carried."""
STACK = 2**18
"""Bytes; the usual 8 MiB of a thread count against a limit on the process's data."""
MEMORY = 0.2
"""How much the newest transfer counts in the rate."""
SMALLEST = 2**16
"""Bytes; of what is smaller, the call is what takes time, and no rate is measured."""


class Transfer:
    """Something under way. `tensor` is held until it is done, so that nothing else gets its memory."""

    def __init__(self, work: Callable[[], None], size: int, tensor: torch.Tensor) -> None:
        self.size = size
        self.tensor: torch.Tensor | None = tensor
        self.waited: float | None = None
        self._work: Callable[[], None] | None = work
        self._error: BaseException | None = None
        self._done = threading.Event()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        """Until it is done; raises what went wrong."""
        late, begin = not self.done, time.perf_counter()
        self._done.wait()
        self.waited = time.perf_counter() - begin if late else 0.0
        if self._error is not None:
            raise self._error

    def run(self) -> None:
        try:
            if self._work is not None:
                self._work()
        except BaseException as error:  # it is raised where the transfer is waited for
            self._error = error
        finally:
            self._end()

    def fail(self, error: BaseException) -> None:
        """It was not begun, and never will be."""
        if not self.done:
            self._error = error
            self._end()

    def _end(self) -> None:
        self._work = None
        self.tensor = None
        self._done.set()


class Lane:
    """One direction. Its thread begins at once, because later there may be no memory for it; it ends with
    `close`."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Transfer | None] = SimpleQueue()
        self.rate = USUAL_RATE
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        start_thread(self._thread, STACK)

    def send(self, transfer: Transfer) -> Transfer:
        self._queue.put(transfer)
        return transfer

    def close(self) -> None:
        """After what is under way; what still waits is done too, because somebody may wait for it."""
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (transfer := self._queue.get()) is not None:
            try:
                self._carry(transfer)
            except MemoryError as error:  # of the little that a call takes; somebody waits
                transfer.fail(error)
            del transfer

    def _carry(self, transfer: Transfer) -> None:
        begin = time.perf_counter()
        transfer.run()
        seconds = max(time.perf_counter() - begin, 1e-7)
        if transfer.size >= SMALLEST:
            self.rate += MEMORY * (transfer.size / seconds - self.rate)


def open_lanes(out: str, back: str) -> tuple[Lane, Lane]:
    """Both or none."""
    first = Lane(out)
    try:
        return first, Lane(back)
    except BaseException:
        first.close()
        raise


class FileTier:
    """Memory of a CPU to a file and back."""

    def __init__(self, file: SpillFile) -> None:
        self.file = file
        self._out, self._back = open_lanes("headwater-spill-out", "headwater-spill-back")

    @property
    def rates(self) -> Rates:
        """Both lanes. Without a core to spare, the one that carries is taken from computing."""
        threads = torch.get_num_threads()
        spare = len(os.sched_getaffinity(0)) > threads
        return Rates(self._out.rate, self._back.rate, 0.0 if spare else 1 / threads)

    @property
    def has_memory(self) -> bool:
        return False

    def prepare(self, size: int) -> int:
        return self.file.prepare(size)

    def reserve(self, size: int) -> Extent:
        return self.file.reserve(size)

    def release(self, extent: Extent) -> None:
        self.file.release(extent)

    def write(self, extent: Extent, tensor: torch.Tensor) -> Transfer:
        """Begin to copy the whole storage of a tensor."""
        address = tensor.untyped_storage().data_ptr()
        return self._out.send(Transfer(lambda: self.file.write(extent, address), extent.size, tensor))

    def read(self, extent: Extent, device: torch.device) -> tuple[torch.Tensor, Transfer]:
        """Begin to bring it back, as bytes in a new storage."""
        tensor = torch.empty(extent.size, dtype=torch.uint8, device=device)
        address = tensor.data_ptr()
        return tensor, self._back.send(Transfer(lambda: self.file.read(extent, address), extent.size, tensor))

    def close(self) -> None:
        self._out.close()
        self._back.close()
        self.file.close()
