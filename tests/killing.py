"""Processes that are killed at the disk: every file operation is a point before it and one after it."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

DISK = {
    *("open", "fdopen", "write", "flush", "fsync", "close", "replace", "rename", "unlink", "mkdir"),
    *("flock", "listdir", "scandir", "stat", "mmap", "read", "readall"),
}


def find_points(action: Callable[[], object]) -> list[str]:
    """What stands at each point of the action, such as `c_call write`; it is carried out, in a child."""
    reading, writing = os.pipe()

    def tell() -> None:
        watch = _Watch(0)
        watch.run(action)
        os.write(writing, "\n".join(watch.seen).encode())

    _in_child(tell)
    os.close(writing)
    with os.fdopen(reading) as file:
        return file.read().split("\n")


def choose(points: list[str], count: int) -> list[int]:
    """Every torn write, every moment before a rename, and so many others, evenly; counted from 1."""
    sore = {place for place, name in enumerate(points, start=1) if name in ("c_call write", "c_call replace")}
    return sorted(sore | set(range(1, len(points) + 1, -(-len(points) // count))))


def kill_at(point: int, action: Callable[[], object]) -> None:
    """Carry out the action in a child that kills itself at a point; a write is torn in the middle."""
    status = _in_child(lambda: _Watch(point).run(action))
    assert os.WIFSIGNALED(status), f"not killed at point {point}"
    assert os.WTERMSIG(status) == signal.SIGKILL


def _in_child(call: Callable[[], object]) -> int:
    child = os.fork()
    if not child:
        code = 1
        try:
            call()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or not status, "the action failed"
    return status


class _Watch:
    def __init__(self, point: int) -> None:
        self._point = point
        self.seen: list[str] = []

    def run(self, action: Callable[[], object]) -> None:
        sys.setprofile(self._see)
        try:
            action()
        finally:
            sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("c_call", "c_return") or getattr(argument, "__name__", "") not in DISK:
            return
        self.seen.append(f"{event} {argument.__name__}")
        if len(self.seen) != self._point:
            return
        data = frame.f_locals.get("data")
        if event == "c_call" and argument.__name__ == "write" and isinstance(data, bytes):
            os.write(argument.__self__.fileno(), data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
