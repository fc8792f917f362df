"""One worker process, seen from the daemon: start it, ask it, notice its death, end it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from headwater.store.server.arena import LOADING, NOBODY, Arena, allocate
from headwater.store.server.frames import Answer, Fault, Hello, Job, Reply, Setup, receive, send

_KEPT_VARIABLES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "PYTHONHOME",
    "PYTHONPATH",
    "TMPDIR",
    "VIRTUAL_ENV",
)
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_TICK_SECONDS = 0.5
_START_SECONDS = 60.0


class Died(Exception):
    """A worker that is no more: why, and which sample of its job it was at, or `NOBODY`, or `LOADING`."""

    def __init__(self, reason: str, place: int = NOBODY, cpu_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.place = place
        self.cpu_seconds = cpu_seconds
        """What its last job had taken by then."""


@dataclass(frozen=True)
class _Life:
    """A process, and what it is spoken to with."""

    process: subprocess.Popen[bytes]
    link: socket.socket
    arena: Arena
    messages: IO[bytes]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.link.close()
        self.messages.close()


class Child:
    """A place for a worker process, filled again after a death. For one thread at a time, but for `kill`."""

    def __init__(self, command: Sequence[str], *, arena_bytes: int, patience_seconds: float) -> None:
        self._command = tuple(command)
        self._arena_bytes = arena_bytes
        self._patience_seconds = patience_seconds
        self._life: _Life | None = None
        self._cpu_before = 0.0
        self._is_starting = False
        self.starts = 0
        self.deaths = 0
        """Deaths and failed starts since the last answer."""

    @property
    def pid(self) -> int | None:
        """Of the process while it lives."""
        life = self._life
        return life.process.pid if life is not None and life.process.poll() is None else None

    @property
    def is_loading(self) -> bool:
        """Whether its process starts or loads a library, which may take seconds; asked in any thread."""
        life = self._life
        return self._is_starting or (life is not None and life.arena.place == LOADING)

    @property
    def arena(self) -> Arena:
        """The arena of the process, which must have been started."""
        assert self._life is not None
        return self._life.arena

    def start(self, setup: Setup, starter: Executor) -> dict[str, str]:
        """Start a new process and wait until it is ready; its digests. Raises `Died`.

        The kernel ends it together with the thread that started it, so `starter` is one that stays.
        """
        self.end()
        self.starts += 1
        self._cpu_before, self._is_starting = 0.0, True
        try:
            self._life = life = self._launch(starter)
            life.link.settimeout(_TICK_SECONDS)
            send(life.link, setup)
            return receive(life.link, Hello, _Watch(life.arena, _START_SECONDS).tick).catalogue
        except (OSError, EOFError, ValueError) as error:
            raise self.bury(str(error)) from error
        finally:
            self._is_starting = False

    def _launch(self, starter: Executor) -> _Life:
        with ExitStack() as handed, ExitStack() as kept:
            handed.callback(os.close, descriptor := allocate(self._arena_bytes))
            link, theirs = map(kept.enter_context, socket.socketpair())
            handed.enter_context(theirs)
            messages = kept.enter_context(tempfile.TemporaryFile())
            passed = (theirs.fileno(), descriptor)
            process = starter.submit(_popen, (*self._command, *map(str, passed)), passed, messages).result()
            kept.pop_all()
            return _Life(process, link, Arena(descriptor), messages)

    def ask(self, job: Job) -> Reply | Fault:
        """Run a job whose files lie in the arena. Raises `Died`; then the arena is worth nothing."""
        assert self._life is not None
        link, arena = self._life.link, self._life.arena
        arena.place = NOBODY
        self._cpu_before = _cpu_seconds(self._life.process.pid)
        try:
            link.settimeout(self._patience_seconds)
            send(link, job)
            link.settimeout(min(_TICK_SECONDS, self._patience_seconds / 4))
            answer = receive(link, Answer, _Watch(arena, self._patience_seconds).tick).content
        except (OSError, EOFError, ValueError) as error:
            raise self.bury(str(error)) from error
        self.deaths = 0
        return answer

    def bury(self, reason: str) -> Died:
        """End the process; `reason` is why, unless it has already ended for one of its own."""
        self.deaths += 1
        if self._life is None:
            return Died(reason)
        # Before anybody waits for it: a process that has ended keeps its times until then.
        spent = max(0.0, _cpu_seconds(self._life.process.pid) - self._cpu_before)
        told = [_exit_reason(self._life.process) or reason, *_last_lines(self._life.messages.fileno())]
        place = self._life.arena.place
        self.end()
        return Died("; ".join(told), place, spent)

    def kill(self) -> None:
        """End the process, from any thread; whoever waits for its answer sees it die."""
        if (life := self._life) is not None and life.process.poll() is None:
            life.process.kill()

    def end(self) -> None:
        """End the process if it lives, and let go of what it was spoken to with."""
        if self._life is not None:
            self._life.end()
            self._life = None


def _popen(command: Sequence[str], passed: tuple[int, int], messages: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=messages,
        stderr=messages,
        env=environment(),
        pass_fds=passed,
    )


def _exit_reason(process: subprocess.Popen[bytes]) -> str:
    """How it died by itself; empty if it lives."""
    try:
        # its socket closes a little before it is gone
        code = process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        return ""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _cpu_seconds(pid: int) -> float:
    """CPU of a process until now, to the nearest tick of the kernel; 0 where nobody tells."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # its name, in brackets, may hold anything
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _last_lines(file: int) -> list[str]:
    # not read(): the process writes where this descriptor stands
    text = os.pread(file, 4096, max(0, os.fstat(file).st_size - 4096)).decode(errors="replace")
    return text.splitlines()[-6:]


class _Watch:
    """Raises once the sample in the making has been the same for too long."""

    def __init__(self, arena: Arena, patience_seconds: float) -> None:
        self._arena = arena
        self._patience_seconds = patience_seconds
        self._seen = (arena.place, time.monotonic())

    def tick(self) -> None:
        place, since = self._seen
        if self._arena.place != place:
            self._seen = (self._arena.place, time.monotonic())
            return
        patience = _START_SECONDS if place == LOADING else self._patience_seconds
        if time.monotonic() - since > patience:
            raise TimeoutError(f"no sign of life for {patience:g} s")


def environment() -> dict[str, str]:
    """What a worker sees of the daemon's environment: where Python and its libraries lie, and no secret."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return kept | dict.fromkeys(_ONE_THREAD, "1")
