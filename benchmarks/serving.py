"""Stores and their clients as processes: photos to serve, `headwater serve`, readers, and what they cost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headwater.cli.cpu import tree_cpu_seconds
from local_photos import shards
from measuring import Options

PROCESSES = Path(__file__).parent / "processes"
STORE_CORE, CLIENT_CORE = 0, 1
_END_SECONDS = 20
_TICK_SECONDS = 0.5


def make_tars(folder: Path, options: Options, *, megabytes: int) -> Path:
    """Photos in WebDataset tars, repeated under other names until there are enough; the folder of them."""
    target = folder / "photos"
    target.mkdir()
    contents, size, number = list(shards(options)), 0, 0
    while size < megabytes * 1_000_000:
        name, content = contents[number % len(contents)]
        (target / f"{name}-{number // len(contents)}.tar").write_bytes(content)
        size, number = size + len(content), number + 1
    return target


@dataclass(frozen=True)
class Store:
    """A running store."""

    address: str
    pid: int
    http: str = ""

    @property
    def photos(self) -> str:
        return f"{self.address}/photos"

    @property
    def place(self) -> str:
        """HOST:PORT."""
        return self.address.partition("://")[2]


@contextmanager
def serve(
    photos: Path,
    *,
    listen: str = "127.0.0.1:0",
    cores: float | None = None,
    tokens: Path | None = None,
    within: Sequence[str] = (),
    further: Sequence[str] = (),
) -> Iterator[Store]:
    """`headwater serve` until the block ends; `within` are words before its command, `further` behind it."""
    words = [*within, sys.executable, "-m", "headwater.cli", "serve", f"photos={photos}", "--listen", listen]
    words += ["--plaintext", "--json", *(["--cores", str(cores)] if cores else []), *further]
    words += ["--token-file", str(tokens)] if tokens else []
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said = _announced(child)
        yield Store(str(said["address"]), child.pid, said["http"] or "")
    finally:
        end(child)


def kill(store: Store) -> None:
    """As a machine that loses its power would end it, but for the disk."""
    os.kill(store.pid, signal.SIGKILL)


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """What is started meanwhile has this core and no other."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def demand_two_cores() -> None:
    """Exit where a store and its client cannot have a core each."""
    if not {STORE_CORE, CLIENT_CORE} <= os.sched_getaffinity(0):
        raise SystemExit("this benchmark needs two cores, one for the store and one for its client")


def _announced(child: subprocess.Popen[str]) -> Mapping[str, Any]:
    """Its one JSON document, over several lines."""
    assert child.stdout is not None
    said = ""
    for line in child.stdout:
        said += line
        if line.startswith("}"):
            found: dict[str, Any] = json.loads(said)
            if "address" in found:
                return found
    raise RuntimeError(f"the store did not start: {said}")


def end(child: subprocess.Popen[str]) -> None:
    """SIGTERM, and SIGKILL for who does not hear it."""
    child.terminate()
    try:
        child.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


class CpuWatch:
    """CPU seconds of a process and its children, tick by tick, in a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> CpuWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def windows(self, begin: float, seconds: float) -> tuple[float, ...]:
        """Cores in use over every stretch of `seconds` that starts at a tick after `begin`."""
        seen = [(when, cpu) for when, cpu in self._seen if when >= begin]
        ahead = round(seconds / _TICK_SECONDS)
        pairs = zip(seen, seen[ahead:], strict=False)
        return tuple((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs)

    def _watch(self) -> None:
        due = time.monotonic()
        while not self._over.is_set():
            self._seen.append((time.monotonic(), tree_cpu_seconds(self._pid)))
            due += _TICK_SECONDS
            self._over.wait(max(0.0, due - time.monotonic()))


class Child:
    """A script of `processes/` in a process, until the block ends.

    It says a line of JSON when it is ready, and another in answer to each line that it is told. `within` are
    words before its command, `settings` what its environment has beside our own.
    """

    def __init__(
        self, script: str, *words: str, within: Sequence[str] = (), settings: Mapping[str, str] | None = None
    ) -> None:
        self._script = script
        self._process = subprocess.Popen(
            [*within, sys.executable, str(PROCESSES / script), *words],
            env={**os.environ, **(settings or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ask(self, line: str) -> Any:
        """What it answers."""
        self.say(line)
        return self.hear()

    def say(self, line: str) -> None:
        """Tell it something; if it has ended, `hear` says so."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise RuntimeError(f"{self._script} ended with code {code}; its error is above")
        return json.loads(line)

    def __enter__(self) -> Self:
        self.hear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self._process)


class Reader(Child):
    """processes/reader.py; `how` are its `Settings`."""

    def __init__(
        self, url: str, how: Mapping[str, float], *, token: str = "", within: Sequence[str] = ()
    ) -> None:
        settings = {"HEADWATER_TOKEN": token} if token else None
        super().__init__("reader.py", url, json.dumps(dict(how)), within=within, settings=settings)

    def epoch(self) -> dict[str, float]:
        """One epoch of a loader: images, bytes, seconds."""
        found: dict[str, float] = self.ask("epoch")
        return found


def fetch_together(readers: Mapping[str, Reader], begin: float, until: float) -> dict[str, dict[str, float]]:
    """All fetch at once; what each got between the two times of `time.monotonic`."""
    for reader in readers.values():
        reader.say(f"window {begin} {until}")
    return {name: reader.hear() for name, reader in readers.items()}
