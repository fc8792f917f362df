"""A store in a process of its own: `headwater serve` as a child, for the demo and the benchmarks.

The child ends with its parent, however that ends: it watches a pipe that only the parent holds open.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import msgspec

from headwater.cli.proxy import Address, parse_address
from headwater.errors import HeadwaterError

START_SECONDS = 90.0
"""A store loads torch and takes its digests in a few seconds; on a busy machine in some more."""
END_SECONDS = 10.0
MODULE = "headwater.cli.child_store"

_Argument = str | os.PathLike[str]


class ChildStore:
    """Serves `data`, words as `headwater serve` takes them, on loopback from `start` (or `with`) to `close`.

    `flags` are further words. What the store says on standard error goes to the file `log`. Started again,
    it listens on the port that it had.
    """

    def __init__(self, data: Sequence[_Argument], *, log: Path, flags: Sequence[_Argument] = ()) -> None:
        self._words = [os.fspath(word) for word in (*data, *flags)]
        self._log = log
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self.scheme = ""
        self.datasets: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def address(self) -> Address:
        return "127.0.0.1", self._port

    def uri(self, dataset: str, *, through: Address | None = None) -> str:
        """What `hw.open` takes; `through` is where a proxy before the store listens."""
        host, port = through or self.address
        return f"{self.scheme}://{host}:{port}/{dataset}"

    def start(self) -> Self:
        """Wait until it listens; raises `HeadwaterError` with its last words if it does not."""
        command = [sys.executable, "-P", "-m", MODULE, *self._words]
        command += ["--listen", f"127.0.0.1:{self._port}", "--json"]
        # A token of the environment would open this store too.
        environment = {name: value for name, value in os.environ.items() if name != "HEADWATER_TOKEN"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        document = _read_document(self._process)
        if "address" not in document:
            self.close()
            reason = document.get("error", {}).get("message") or _last_line(self._log)
            raise HeadwaterError(f"the store did not start: {reason}; see {self._log}")
        self.scheme, _, place = document["address"].partition("://")
        self._port, self.datasets = parse_address(place)[1], document["datasets"]
        return self

    def kill(self) -> None:
        """SIGKILL: no drain, no last words."""
        process = self._running()
        process.kill()
        _forget(process)
        self._process = None

    def close(self) -> None:
        """Let it drain; kill it if that takes longer than ten seconds. Closing again does nothing."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        _forget(process)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise HeadwaterError("this store does not run; use it inside `with`, or between start and close")
        return self._process


def _read_document(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the store prints when it listens, or why it cannot; empty if it took too long and was ended."""
    late = threading.Timer(START_SECONDS, process.kill)
    late.start()
    try:
        text = "".join(_lines(process))
    finally:
        late.cancel()
    return msgspec.json.decode(text, type=dict[str, Any]) if text.endswith("}\n") else {}


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """Those of one JSON document: the pipe stays open after it."""
    for line in process.stdout or ():
        yield line
        if line == "}\n":
            return


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "it said nothing"


def _forget(process: subprocess.Popen[str]) -> None:
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _end_with_parent() -> None:
    # Not `sys.stdin`: its lock, held by a thread that waits, would abort the interpreter's own end.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _main() -> NoReturn:
    from headwater.cli import main

    threading.Thread(target=_end_with_parent, daemon=True).start()
    main(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    _main()
