"""Runs the jobs of a store, one at a time, in a thread of its own; jobs that a crash cut short go on.

Kinds for which somebody waits have a thread to themselves: there, too, one job runs at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import msgspec

from headwater.errors import HeadwaterError, Unreachable, WrongUse
from headwater.store.jobs.record import (
    DONE,
    FAILED,
    RUNNING,
    STOPPED,
    WAITING,
    JobFolder,
    JobRecord,
    now,
    without,
)

log = logging.getLogger("headwater")

_TROUBLE_SECONDS = 5.0
_CLOSE_SECONDS = 30.0
_LOOK_SECONDS = 0.05


class Paused(HeadwaterError):
    """A job that cannot go on now and may later; what is in its way is the text."""


class Running:
    """A job under way: its record, which it brings up to date, and whether it should end."""

    def __init__(
        self, record: JobRecord, keep: Callable[[JobRecord], None], over: Callable[[], bool] = lambda: False
    ) -> None:
        self.record, self._keep, self._over = record, keep, over

    def over(self) -> bool:
        """Whether it was stopped, or the store ends: it leaves off at once, to go on another time."""
        return self._over()

    def save(self, record: JobRecord | None = None, **changes: Any) -> None:
        """Change the record; on disk when this returns."""
        changed = msgspec.structs.replace(record or self.record, **changes)
        self._keep(changed)
        self.record = changed

    def show(self, **changes: Any) -> None:
        """Change what is shown of it, which need not survive."""
        self.record = msgspec.structs.replace(self.record, **changes)


Work = Callable[[Running], None]
"""What a kind of job does until it is done or `over()`. Raises `Paused` or `Unreachable` if it may go on."""


class Jobs:
    """The jobs of one store, by id. Safe to use from many threads; `start` and `close` frame its own."""

    def __init__(
        self,
        folder: JobFolder,
        kinds: Mapping[str, Work],
        *,
        apart: Collection[str] = (),
        trouble_seconds: float = _TROUBLE_SECONDS,
    ) -> None:
        """Kinds that are `apart` wait for none of the others.

        After `trouble_seconds` a job that could not go on is tried again.
        """
        self._folder, self._kinds, self._trouble = folder, kinds, trouble_seconds
        self._apart = frozenset(apart)
        self._records = {record.id: record for record in folder.load()}
        self._changed = threading.Condition()
        self._current: dict[str, Running] = {}
        self._stopped: set[str] = set()
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name="headwater-jobs", daemon=True)
            for lane in ((False, True) if apart else (False,))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Leave off; what is unfinished goes on when these records are opened again."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        end = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))

    def add(self, record: JobRecord) -> JobRecord:
        """Begin a job, unless there is one of this id, or an unfinished one that does the same; the job."""
        if record.kind not in self._kinds:
            raise WrongUse(f"no kind of job is called {record.kind!r}; known: {', '.join(self._kinds)}")
        with self._changed:
            known = self._records.get(record.id) or self._same(record)
            if known is not None:
                return self._shown(known)
            self._keep(record)
            self._changed.notify_all()
            return record

    def list(self) -> list[JobRecord]:
        """All of them, the oldest first."""
        with self._changed:
            return [self._shown(record) for record in self._records.values()]

    @property
    def unfinished(self) -> int:
        """Jobs that wait or run, told at once, also while a record is being written."""
        return sum(record.unfinished for record in tuple(self._records.values()))

    def stop(self, id: str) -> JobRecord:
        """End a job where it is; what it has done stays. Raises `WrongUse` for an id that is none."""
        with self._changed:
            if id not in self._records:
                raise WrongUse(f"no job {id!r} is here; `jobs` lists them")
            record = self._shown(self._records[id])
            if record.unfinished:
                self._stopped.add(id)
                self._keep(record)
            return self._records[id]

    def forget(self, dataset: str, ids: Collection[int]) -> int:
        """Take these samples of a dataset out of what jobs say has failed, on disk; how many stood there.

        Jobs of the dataset that are under way must have ended.
        """
        gone, found = frozenset(ids), 0
        with self._changed:
            for record in list(self._records.values()):
                kept = without(record, gone)
                if record.dataset == dataset and kept != record:
                    found += len(record.failures) - len(kept.failures)
                    self._keep(kept)
        return found

    def end(self, dataset: str, seconds: float) -> bool:
        """End all jobs of a dataset that wait or run; whether none was at work any more within that time."""
        for record in self.list():
            if record.dataset == dataset and record.unfinished:
                self.stop(record.id)
        end = time.monotonic() + seconds
        while self._is_at_work(dataset):
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def _is_at_work(self, dataset: str) -> bool:
        with self._changed:
            return any(running.record.dataset == dataset for running in self._current.values())

    def _same(self, wanted: JobRecord) -> JobRecord | None:
        """An unfinished job that was asked for in the same way."""
        for record in self._records.values():
            if record.unfinished and record.id not in self._stopped and _aim(record) == _aim(wanted):
                return record
        return None

    def _shown(self, record: JobRecord) -> JobRecord:
        """As it stands now: the one under way is ahead of its file, unless it was stopped."""
        current = self._current.get(record.id)
        return record if current is None or record.id in self._stopped else current.record

    def _keep(self, record: JobRecord) -> None:
        """On disk; what was stopped is said to be so at once, though its thread may not know it yet."""
        with self._changed:  # or what the job saves would be written over what `stop` has acknowledged
            if record.id in self._stopped and record.unfinished:
                record = msgspec.structs.replace(record, state=STOPPED, ended=now(), error="")
            self._folder.save(record)
            self._records[record.id] = record

    def _work(self, apart: bool) -> None:
        while (record := self._next(apart)) is not None:
            running = Running(record, self._keep, partial(self._is_over, record.id))
            with self._changed:
                self._current[record.id] = running
            try:
                self._run(running)
            except OSError as error:  # the record itself cannot be written
                log.error("job %s rests: %s", record.id, error)
                self._closing.wait(self._trouble)
            finally:
                with self._changed:
                    del self._current[record.id]

    def _next(self, apart: bool) -> JobRecord | None:
        """The oldest of these kinds that is unfinished, once there is one; None when it is over."""
        with self._changed:
            while not self._closing.is_set():
                for record in self._records.values():
                    wanted = (record.kind in self._apart) == apart and record.id not in self._stopped
                    if wanted and record.unfinished:
                        return record
                self._changed.wait()
        return None

    def _is_over(self, id: str) -> bool:
        return self._closing.is_set() or id in self._stopped

    def _run(self, running: Running) -> None:
        running.save(state=RUNNING, error="")
        try:
            self._kinds[running.record.kind](running)
        except (Paused, Unreachable) as error:
            log.warning("job %s waits: %s", running.record.id, error)
            running.save(state=WAITING, error=str(error))
            self._rest(running)
            return
        except Exception as error:
            log.error("job %s failed", running.record.id, exc_info=error)
            running.save(state=FAILED, ended=now(), error=_told(error))
            return
        if running.over():
            running.save()  # how far it came, if it was stopped
        else:
            running.save(state=DONE, ended=now(), error="")

    def _rest(self, running: Running) -> None:
        """Until it is worth another try, or nobody wants that any more."""
        end = time.monotonic() + self._trouble
        while time.monotonic() < end and not running.over():
            self._closing.wait(_LOOK_SECONDS)


def _aim(record: JobRecord) -> tuple[object, ...]:
    what = record.kind, record.dataset, record.version, record.model
    return *what, record.options, record.bound, record.selection


def _told(error: Exception) -> str:
    """What a caller may know of it: what is not ours names its log line only."""
    return (
        str(error)
        if isinstance(error, HeadwaterError)
        else f"{type(error).__name__}; the store's log says more"
    )
