"""Who read and did what: a file of JSON lines that never costs a request.

Requests that read are thousands a second, so they are added up and written once per interval. Everything
else is a line at once, but for refusals, which a stranger could make without end: one line per second and
address. There is no thread here: time passes when somebody calls, and the daemon calls `flush` now and then.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headwater.store.server.linefile import TEXT, Fact, Line, LineFile, encode, stamp
from headwater.store.server.peers import host_of, limited_address

REFUSAL_SECONDS = 1.0
_TALLIES = 4096
_MANY = "many addresses"


class Who(Protocol):
    """As much of a caller as a line names."""

    @property
    def name(self) -> str: ...
    @property
    def peer(self) -> str: ...


@dataclass
class _Reads:
    """Requests of one (action, caller, host, dataset, outcome), added up."""

    begin: float
    end: float
    requests: int = 0
    samples: int = 0
    bytes: int = 0


@dataclass
class _Refusals:
    """Refusals of one (address, caller, reason) that no line tells of yet, and the last one's details."""

    since: float
    count: int = 0
    host: str = ""
    scope: str = ""
    dataset: str = ""


_ReadKey = tuple[str, str, str, str, str]
_RefusalKey = tuple[str, str, str]


class AuditLog:
    """Appends to `path`; `None` keeps no log. Safe to use from many threads.

    The file is made with mode 0600; one that exists keeps its mode. It may be renamed by logrotate at any
    time. `lost` counts the lines that could not be written. Only the constructor raises: `WrongUse` for a
    path that cannot be written.
    """

    def __init__(
        self, path: Path | None, *, clock: Callable[[], float] = time.time, interval: float = 10.0
    ) -> None:
        self._interval = interval
        self._clock = clock
        self._file = LineFile(path, clock=clock) if path else None
        self._lock = threading.Lock()
        self._reads: dict[_ReadKey, _Reads] = {}
        self._refusals: dict[_RefusalKey, _Refusals] = {}
        self._flushed = clock()

    @property
    def lost(self) -> int:
        return self._file.lost if self._file else 0

    def event(
        self, action: str, caller: Who, *, dataset: str = "", outcome: str = "ok", **facts: Fact
    ) -> None:
        """One line, at once."""
        if self._file is None:
            return
        fixed = _line(self._clock(), action, caller.name, host_of(caller.peer))
        fixed |= {"dataset": dataset, "outcome": outcome}
        # Twice: a fact cannot stand in for who it was.
        self._write([fixed | facts | fixed])
        self._flush_if_due()

    def read(
        self,
        caller: Who,
        dataset: str,
        *,
        samples: int,
        bytes: int,
        outcome: str = "ok",
        action: str = "read",
    ) -> None:
        """Count one request that reads; a line tells of it, and of those like it, within `interval`."""
        if self._file is None:
            return
        now = self._clock()
        key = action, caller.name, host_of(caller.peer), dataset[:TEXT], outcome
        with self._lock:
            sums = self._reads.setdefault(key, _Reads(now, now))
            sums.end = now
            sums.requests += 1
            sums.samples += samples
            sums.bytes += bytes
            full = len(self._reads) >= _TALLIES
        self._flush_if_due(now=full)

    def refused(self, caller: Who, reason: str, *, scope: str = "", dataset: str = "") -> None:
        """A request that was not let in: the first at once, later ones added up for a second."""
        if self._file is None:
            return
        now = self._clock()
        with self._lock:
            key = limited_address(caller.peer), caller.name, reason
            if key not in self._refusals and len(self._refusals) >= _TALLIES:
                key = _MANY, caller.name, reason
            pending = self._refusals.setdefault(key, _Refusals(-math.inf))
            pending.count += 1
            pending.host, pending.scope, pending.dataset = host_of(caller.peer), scope, dataset
            lines = [self._tell(key, now)] if abs(now - pending.since) >= REFUSAL_SECONDS else []
        self._write(lines)
        self._flush_if_due()

    def flush(self) -> None:
        """Write what has been added up."""
        self._flush(self._clock(), hush_seconds=REFUSAL_SECONDS)

    def close(self) -> None:
        """Write the rest and close the file; a later call would open it again."""
        self._flush(self._clock(), hush_seconds=0.0)
        if self._file is not None:
            self._file.close()

    def _flush_if_due(self, *, now: bool = False) -> None:
        # abs: a clock that was set back must not stop the writing.
        if now or abs(self._clock() - self._flushed) >= self._interval:
            self.flush()

    def _flush(self, now: float, *, hush_seconds: float) -> None:
        with self._lock:
            lines = [_read_line(key, sums, now) for key, sums in self._reads.items()]
            self._reads = {}
            self._flushed = now
            for key, pending in list(self._refusals.items()):
                if abs(now - pending.since) < hush_seconds:
                    continue
                if pending.count:
                    lines.append(self._tell(key, now))
                else:
                    del self._refusals[key]
        self._write(lines)

    def _tell(self, key: _RefusalKey, now: float) -> Line:
        """The line of what is pending, which begins its next second. The caller holds the lock."""
        pending = self._refusals[key]
        self._refusals[key] = _Refusals(now)
        address, name, reason = key
        line = _line(now, "refused", name, _MANY if address == _MANY else pending.host)
        return line | {
            "dataset": pending.dataset,
            "outcome": reason,
            "scope": pending.scope,
            "count": pending.count,
        }

    def _write(self, lines: list[Line]) -> None:
        if self._file is not None and lines:
            self._file.append([encode(line) for line in lines])


def _line(now: float, action: str, caller: str, peer: str) -> Line:
    return {"time": stamp(now), "action": action, "caller": caller, "peer": peer}


def _read_line(key: _ReadKey, sums: _Reads, now: float) -> Line:
    action, name, host, dataset, outcome = key
    return _line(now, action, name, host) | {
        "dataset": dataset,
        "outcome": outcome,
        "samples": sums.samples,
        "bytes": sums.bytes,
        "requests": sums.requests,
        "from": stamp(sums.begin),
        "to": stamp(sums.end),
    }
