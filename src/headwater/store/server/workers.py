"""Worker processes that run steps for the daemon, so that a decoder that crashes takes nothing else down."""

from __future__ import annotations

import hashlib
import logging
import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from headwater.data.buffers import Buffers
from headwater.data.image import Limits
from headwater.errors import HeadwaterError, WrongUse
from headwater.store.server.arena import FIRST, LOADING
from headwater.store.server.child import Child, Died
from headwater.store.server.chunk import Buffer, Bytes, Chunk, Done, Work
from headwater.store.server.frames import Fault, Setup

__all__ = ["Done", "Work", "Workers", "WorkersBusy", "WorkersFailed"]

log = logging.getLogger("headwater")

COMMAND = (sys.executable, "-P", "-m", "headwater.store.server.worker")
_STARTS = 3
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
_BARRED_SECONDS = 30.0
_LEAST_PATIENCE_SECONDS = 10.0
BORROW_SECONDS = 1.0
"""That a chunk waits for a worker: longer than a chunk takes, and far shorter than a hung worker lives."""


class WorkersFailed(HeadwaterError):
    """No worker process can be started, or all were closed; samples can still be served as files."""


class WorkersBusy(HeadwaterError):
    """No worker came free in time; the samples can be served as files."""


class Workers:
    """Up to `count` worker processes, each with an arena of `arena_bytes`. Safe to use from many threads.

    A worker that shows no progress for `patience_seconds` (by default twice what one image may take, and at
    least 10) is killed. `command` starts a worker; the descriptors of its socket and arena are appended.
    """

    def __init__(
        self,
        count: int,
        *,
        limits: Limits,
        arena_bytes: int = 256 << 20,
        command: Sequence[str] = COMMAND,
        patience_seconds: float | None = None,
    ) -> None:
        if count < 1 or arena_bytes <= FIRST:
            raise WrongUse(f"{count} workers with {arena_bytes} bytes each cannot work; give more of both")
        patience = patience_seconds or max(_LEAST_PATIENCE_SECONDS, 2 * limits.seconds)
        self._limits, self._arena_bytes = limits, arena_bytes
        self._children = [
            Child(command, arena_bytes=arena_bytes, patience_seconds=patience) for _ in range(count)
        ]
        self._idle: queue.LifoQueue[Child] = queue.LifoQueue()  # the one used last has its code in the caches
        for child in self._children:
            self._idle.put(child)
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="headwater-starter")
        self._buffers = Buffers(keep=count)
        self._closed = threading.Event()
        self._lock, self._gathering = threading.Lock(), threading.Lock()
        self._quarantine: dict[int, bytes] = {}
        self._barred = (0.0, "")
        self.restarts = 0
        self.catalogue: dict[str, str] = {}
        """Digests of the steps as a worker runs them, by name; empty before the first start."""

    @property
    def pids(self) -> list[int]:
        """Of the processes that live."""
        return [pid for child in self._children if (pid := child.pid) is not None]

    @property
    def count(self) -> int:
        """Processes that there may be: as many chunks are run at once."""
        return len(self._children)

    @property
    def loading(self) -> bool:
        """Whether one of them loads a library, for which all who wait have patience."""
        return any(child.is_loading for child in self._children)

    @property
    def quarantined(self) -> frozenset[int]:
        """Ids of samples that crash a worker whenever they are decoded."""
        with self._lock:
            return frozenset(self._quarantine)

    def release(self, ids: Iterable[int] | None = None) -> None:
        """Let these samples, or all, be tried again."""
        with self._lock:
            for id in list(self._quarantine) if ids is None else ids:
                self._quarantine.pop(id, None)

    def start(self) -> None:
        """Start all processes and learn the catalogue, now instead of with the first chunks."""
        with self._borrow() as child:
            self._revive(child)  # it finds the digests for all
        with self._gather() as children, ThreadPoolExecutor(len(children)) as pool:
            list(pool.map(self._revive, children))

    def run(self, work: Work, files: Sequence[Buffer]) -> Done:
        """Make every sample of a chunk, waiting a second for a worker if all are busy.

        While one of them loads a library it waits for that too. A crash costs a restart; the sample that
        crashes a worker twice is quarantined, the others are made. Raises `WorkersBusy` when no worker came
        free, and `WorkersFailed` when none can be started.
        """
        chunk = Chunk(work, files, arena_bytes=self._arena_bytes, buffers=self._buffers)
        chunk.divide(self._healthy(work, chunk))
        if not chunk.parts:
            return chunk.done
        with self._borrow(BORROW_SECONDS) as child:
            while chunk.parts:
                self._run_part(chunk.parts.popleft(), chunk, child=child, work=work)
        return chunk.done

    def _run_part(self, part: list[int], chunk: Chunk, *, child: Child, work: Work) -> None:
        self._revive(child)
        try:
            answer = child.ask(chunk.load(part, child.arena))
            if isinstance(answer, Fault):
                log.warning("a worker could not run %d samples: %s", len(part), answer.reason)
                return
            try:
                chunk.unload(part, answer, child.arena)
            except ValueError as error:
                raise child.bury(str(error)) from error
        except Died as death:
            chunk.done.cpu_seconds += death.cpu_seconds
            self._check_open()
            # as text: a log record that held the error would hold its frames, and so the dead one's arena
            log.warning("a worker died, %s; starting another", str(death))
            if death.place == LOADING:
                chunk.parts.appendleft(part)
                self._forgive_loading(child, str(death))
            elif (culprit := chunk.blame(part, death.place)) is not None:
                self._lock_away(culprit, chunk, work)

    def _forgive_loading(self, child: Child, reason: str) -> None:
        """A library that kills its worker when it is loaded is like a worker that cannot start."""
        if child.deaths >= _STARTS:
            self._bar(reason)

    def _healthy(self, work: Work, chunk: Chunk) -> list[int]:
        """The places whose samples are not in quarantine."""
        with self._lock:
            suspects = np.flatnonzero(np.isin(work.ids, list(self._quarantine))) if self._quarantine else ()
            known = dict(self._quarantine)
        # The same id in another dataset, or a file that was mended, is another matter.
        ill = {place for place in suspects if known[int(work.ids[place])] == _digest(chunk.files[place])}
        chunk.done.quarantined += [int(work.ids[place]) for place in sorted(ill)]
        return [place for place in range(len(work.ids)) if place not in ill]

    def _lock_away(self, place: int, chunk: Chunk, work: Work) -> None:
        id = int(work.ids[place])
        log.error("sample %d crashed two workers and is quarantined", id)
        with self._lock:
            self._quarantine[id] = _digest(chunk.files[place])
        chunk.done.quarantined.append(id)

    @contextmanager
    def _borrow(self, patience: float | None = None) -> Iterator[Child]:
        child = self._take(patience)
        try:
            self._check_open()
            yield child
        finally:
            self._idle.put(child)

    def _take(self, patience: float | None) -> Child:
        while True:
            try:
                return self._idle.get(timeout=patience)
            except queue.Empty:
                if not self.loading:
                    raise WorkersBusy(f"no worker came free within {patience:g} s") from None

    @contextmanager
    def _gather(self) -> Iterator[list[Child]]:
        """All of them, once nobody uses one. One thread at a time: two would wait for each other's half."""
        with self._gathering:
            children = [self._idle.get() for _ in self._children]
            try:
                yield children
            finally:
                for child in children:
                    self._idle.put(child)

    def _revive(self, child: Child) -> None:
        """Make sure that the child lives."""
        if child.pid is not None:
            return
        self._check_barred()
        for _ in range(_STARTS):
            try:
                self._start(child)
                return
            except Died as death:
                self._check_open()
                reason = str(death)
        self._bar(reason)

    def _start(self, child: Child) -> None:
        if child.deaths:
            pause = _FIRST_PAUSE_SECONDS * 2.0 ** min(child.deaths - 1, 10)
            self._closed.wait(min(pause, _LONGEST_PAUSE_SECONDS))
        self._check_open()
        with self._lock:
            self.restarts += child.starts > 0
        # One worker's digests are all workers' digests, and taking them loads torch.
        found = child.start(Setup(self._limits, digests=not self.catalogue), self._starter)
        if self._closed.is_set():
            child.kill()
        if found:
            self.catalogue = found

    def _bar(self, reason: str) -> None:
        self._barred = (time.monotonic() + _BARRED_SECONDS, reason)
        self._check_barred()

    def _check_barred(self) -> None:
        until, reason = self._barred
        if time.monotonic() < until:
            raise WorkersFailed(
                f"{_STARTS} worker processes in a row did not start: {reason}; samples are served as files, "
                f"and workers are tried again after {_BARRED_SECONDS:g} s"
            )

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise WorkersFailed("the workers are closed; samples can only be served as files")

    def close(self) -> None:
        """End all processes; a `run` under way raises `WorkersFailed`."""
        self._closed.set()
        for child in self._children:
            child.kill()
        with self._gather() as children:
            for child in children:
                child.end()
        self._starter.shutdown()


def _digest(file: Bytes) -> bytes:
    return hashlib.blake2b(file.data, digest_size=16).digest()
