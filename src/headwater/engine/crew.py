"""The threads of a run: some that wait for storage, some that compute."""

from __future__ import annotations

import logging
import math
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Protocol

from headwater.engine.quota import granted_cores
from headwater.errors import ForkedUse, WrongUse

log = logging.getLogger("headwater")

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


class Daemons:
    """Threads that nobody waits for when the program ends, for calls that may hang until a deadline.

    A new thread starts when a call finds none idle, up to `most`.
    """

    def __init__(self, most: int, name: str, closed: str = _CLOSED) -> None:
        """`closed` is what a call is told that comes too late."""
        self._most, self._name, self._told = most, name, closed
        self._calls: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._unfinished = 0
        self._closed = False

    def submit(self, call: Callable[..., None], /, *arguments: Any) -> None:
        with self._lock:
            if self._closed:
                raise WrongUse(self._told)
            if self._threads < min(self._unfinished + 1, self._most):
                name = f"{self._name}-{self._threads + 1}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._threads += 1
            self._calls.put((call, arguments))
            self._unfinished += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._closed = True
            while cancel_futures and not self._calls.empty():
                self._calls.get()
            for _ in range(self._threads):
                self._calls.put(None)

    def _work(self) -> None:
        while (todo := self._calls.get()) is not None:
            call, arguments = todo
            try:
                call(*arguments)
            except BaseException:  # a thread that ended here would be missed by all later calls
                log.exception("a call in %s failed", self._name)
            finally:
                del todo, call, arguments  # an idle thread keeps no batch alive
                with self._lock:
                    self._unfinished -= 1


class Crew:
    """`readers` threads that read and `workers` threads that run steps; with 0 workers, none at all.

    Threads start with the first call, and belong to the process that made the crew. `prepare` is called
    in each worker before its first step. `patient` readers wait for another machine: the end of the
    program does not wait for them.
    """

    def __init__(
        self,
        workers: int,
        readers: int,
        prepare: Callable[[], None] | None = None,
        *,
        patient: bool = False,
    ) -> None:
        if workers < 0:
            raise WrongUse(f"num_workers is {workers}; it must be 0 or more")
        self.workers = workers
        self.readers = readers if workers else 0
        self._pid = os.getpid()
        self._closed = False
        self.runs: weakref.WeakSet[Abortable] = weakref.WeakSet()
        self.read, self.step = self._pools(prepare, patient)

    def _pools(self, prepare: Callable[[], None] | None, patient: bool) -> tuple[Pool, Pool]:
        if not self.workers:
            return Inline(), Inline()
        name = "headwater-read"
        read = Daemons(self.readers, name) if patient else ThreadPoolExecutor(self.readers, name)
        return read, ThreadPoolExecutor(self.workers, "headwater-step", initializer=prepare)

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
    """Cores that this process may use, whole ones."""
    return math.ceil(granted_cores())
