"""Threads that begin where memory may be short."""

from __future__ import annotations

import mmap
import threading

SLACK = 2**18
"""Bytes that a thread needs beside its stack to begin."""


def start_thread(thread: threading.Thread, stack: int, *, beside: int = 0) -> None:
    """Start it with so many bytes of stack; raises `MemoryError` where there is no room for them.

    A thread that begins without room dies unseen, and Python waits for it for ever. `beside` are bytes that
    it will need at once, of which a want would end the process.
    """
    _require(stack + SLACK + beside)
    usual = threading.stack_size(stack)
    try:
        thread.start()
    finally:
        threading.stack_size(usual)


def _require(size: int) -> None:
    """By a mapping, as stacks are; what `malloc` has left over says nothing of that."""
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        raise MemoryError(f"no room for a thread, which takes {size:,} bytes") from error
