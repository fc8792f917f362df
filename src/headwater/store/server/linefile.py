"""JSON lines appended to a file that may fill its disk, or be moved away by logrotate, at any time."""

from __future__ import annotations

import json
import logging
import math
import os
import stat
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from headwater.errors import WrongUse

log = logging.getLogger("headwater")

Fact = str | int | float | bool | None
Line = dict[str, Fact]

TEXT = 256
_WARN_SECONDS = 60.0


class LineFile:
    """A file that lines are appended to, whatever becomes of it meanwhile."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        self.lost = 0
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._untold = 0
        self._torn = False
        self._warned = -math.inf
        try:
            self._handle = self._open()
        except OSError as error:
            text = f"audit log {path} cannot be written: {error.strerror}; name a file that can"
            raise WrongUse(text) from None

    def append(self, lines: list[bytes]) -> None:
        """Write them. What cannot be written is counted, warned of, and told in the file once that works."""
        with self._lock:
            missed = self._put(lines)
            self.lost += missed
            self._untold += missed
            if self._untold and not missed:
                note: Line = {"time": stamp(self._clock()), "action": "lines lost", "count": self._untold}
                if not self._put([encode(note)]):
                    self._untold = 0

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _put(self, lines: list[bytes]) -> int:
        """How many of the lines are not in the file."""
        # A line that a full disk cut short must not swallow the next one.
        lead = b"\n" if self._torn else b""
        content = lead + b"".join(lines)
        done = 0
        try:
            self._follow()
            while done < len(content):
                done += os.write(self._handle, memoryview(content)[done:])
        except OSError as error:
            self._warn(error)
        if done:
            self._torn = not content[:done].endswith(b"\n")
        return content.count(b"\n", max(done, len(lead)))

    def _follow(self) -> None:
        """Open anew where logrotate has moved the file away."""
        if self._handle >= 0:
            mine = os.fstat(self._handle)
            try:
                there = os.stat(self._path)
            except FileNotFoundError:
                there = None
            if there is not None and (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
                return
        self._drop()
        self._handle = self._open()

    def _open(self) -> int:
        # O_NONBLOCK: opening a pipe that nobody reads would wait for ever.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        handle = os.open(self._path, flags, 0o600)
        self._torn = stat.S_ISREG(os.fstat(handle).st_mode) and _ends_torn(self._path)
        return handle

    def _drop(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def _warn(self, error: OSError) -> None:
        now = self._clock()
        if abs(now - self._warned) >= _WARN_SECONDS:
            self._warned = now
            text = "audit log %s cannot be written (%s), lines are being lost; make room"
            log.warning(text, self._path, error.strerror)


def _ends_torn(path: Path) -> bool:
    """Whether the last line has no end: the process before this one was killed, or its disk was full."""
    try:
        with open(path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # empty, or not ours to read
        return False


def stamp(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def encode(line: Line) -> bytes:
    """One line whatever the strings hold: JSON escapes line ends, and all that is not ASCII."""
    clipped = {name: _plain(value) for name, value in line.items()}
    return json.dumps(clipped, default=str).encode() + b"\n"


def _plain(value: Fact) -> Fact:
    if isinstance(value, str):
        return value[:TEXT]
    # NaN and infinity are not JSON.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
