"""Memory that is used again once nobody looks at it any more.

Fresh memory for a batch of photos costs more than writing the photos into it: the kernel hands it over
page by page. And memory that one thread takes and another gives back makes the process grow for many epochs.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_LARGE = 1 << 22
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)


class Buffers:
    """Lends memory, takes it back when its borrowers are gone, and keeps at most `keep` pieces."""

    def __init__(self, keep: int) -> None:
        # deques are safe to use from a finalizer, which may run in any thread at any time; a lock is not
        self._free: deque[Bytes] = deque(maxlen=keep)

    def lend(self, size: int) -> Bytes:
        """Bytes of anything, that nobody else looks at for as long as this very array lives.

        Slices of it do not keep it alive (numpy lets them refer to the memory itself): hand on a
        memoryview or a tensor of it, which do.
        """
        piece = self._take(size)
        view = piece[:size]
        weakref.finalize(view, self._free.append, piece).atexit = False
        return view

    def _take(self, size: int) -> Bytes:
        for _ in range(len(self._free)):
            try:
                piece = self._free.pop()
            except IndexError:
                break
            if len(piece) >= size:
                return piece
            self._free.appendleft(piece)
        return _allocate(size)


def _allocate(size: int) -> Bytes:
    """A little more than asked for, so that it fits the next one too, straight from the kernel.

    So it goes straight back when it is not kept, however many threads have used it. All of it is in memory
    at once: left to be touched by and by, pieces would grow until each has met the largest sample.
    """
    room = -(-size // _LARGE) * _LARGE if size > _LARGE else 1 << max((size - 1).bit_length(), 12)
    return np.frombuffer(mmap.mmap(-1, room, flags=_FLAGS), np.uint8)
