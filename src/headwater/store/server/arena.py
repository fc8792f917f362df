"""The memory that a worker process shares with the daemon: files go in, pixels come out.

It begins with the number of the sample that is being made, so that it can be read after a crash; then the
files, one behind the other; then what the worker made of them.
"""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np

FIRST = 64
"""Where the first file begins."""
NOBODY = -1
"""The number that stands for no sample."""
LOADING = -2
"""The number that stands for a worker that is loading a library: slow, and no sample's fault."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Arena:
    """One stretch of memory, mapped by both sides; `bytes` is all of it."""

    def __init__(self, descriptor: int) -> None:
        memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self.bytes = np.frombuffer(memory, np.uint8)
        self._place = np.frombuffer(memory, np.int64, count=1)

    @property
    def place(self) -> int:
        """Which sample of the job is being made."""
        return int(self._place[0])

    @place.setter
    def place(self, number: int) -> None:
        self._place[0] = number


def allocate(size: int) -> int:
    """The descriptor of `size` bytes that no file system knows; the caller closes it."""
    descriptor = os.memfd_create("headwater-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    # Unsealed, a decoder that was taken over could shrink it, and the daemon would die of SIGBUS.
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def align(offset: int) -> int:
    """The next multiple of a cache line."""
    return -(-offset // 64) * 64
