"""The threads of a run: some that wait for storage, some that compute."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from headwater.errors import ForkedUse, WrongUse

_CLOSED = "this loader was closed; make a new one"


class Pool(Protocol):
    """Runs a call, now or soon."""

    def submit(self, call: Callable[..., None], /, *arguments: Any) -> object: ...
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...


class Abortable(Protocol):
    """A run that somebody may be waiting for."""

    def abort(self, error: Exception) -> None: ...


class Inline:
    """Runs every call at once, in the caller's thread: for debugging, and for single samples."""

    def submit(self, call: Callable[..., None], /, *arguments: Any) -> None:
        call(*arguments)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        return None


class Crew:
    """`readers` threads that read and `workers` threads that run steps; with 0 workers, none at all.

    Threads start with the first call, and belong to the process that made the crew. `prepare` is called
    in each worker before its first step.
    """

    def __init__(self, workers: int, readers: int, prepare: Callable[[], None] | None = None) -> None:
        if workers < 0:
            raise WrongUse(f"num_workers is {workers}; it must be 0 or more")
        self.workers = workers
        self.readers = readers if workers else 0
        self._pid = os.getpid()
        self._closed = False
        self.runs: weakref.WeakSet[Abortable] = weakref.WeakSet()
        self.read: Pool = ThreadPoolExecutor(readers, "headwater-read") if workers else Inline()
        self.step: Pool = (
            ThreadPoolExecutor(workers, "headwater-step", initializer=prepare) if workers else Inline()
        )

    def check(self) -> None:
        """Raise if the threads are gone: closed, or in a forked child, which would wait for ever."""
        if self._closed:
            raise WrongUse(_CLOSED)
        if os.getpid() != self._pid:
            raise ForkedUse(
                f"this loader belongs to process {self._pid} and was used in forked child {os.getpid()}, "
                "where its threads do not exist; make the loader in the child, or start the child with "
                "multiprocessing's 'spawn' method"
            )

    def close(self) -> None:
        """Let the threads go; calls that have not begun are dropped."""
        self._closed = True
        for run in list(self.runs):
            run.abort(WrongUse(_CLOSED))
        self.read.shutdown(wait=False, cancel_futures=True)
        self.step.shutdown(wait=False, cancel_futures=True)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
