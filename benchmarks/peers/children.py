"""The peers' own venv, and peers as child processes that stay alive through the rounds."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_HERE = Path(__file__).parent
_VENV = _HERE / ".venv"
_STAMP = _VENV / ".installed"
_REQUIREMENTS = _HERE / "requirements.txt"


class Peer:
    """A child that answers "measure SECONDS" with images per second; while idle it waits on a pipe.

    `within` are words before its command.
    """

    def __init__(self, script: str, *arguments: str, seconds: float, within: Sequence[str] = ()) -> None:
        self._name = f"{script} {' '.join(arguments)}"
        self._seconds = seconds
        command = [*within, str(python()), str(_HERE / script), *arguments]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self) -> float:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with suppress(BrokenPipeError):
            self._child.stdin.write(f"measure {self._seconds}\n")
            self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended with code {self._child.wait()}; its error is above")
        found = json.loads(line)
        return float(found["images"] / found["seconds"])

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def python() -> Path:
    """The interpreter of the peers' venv, which is made if it does not exist or is out of date."""
    wanted = _REQUIREMENTS.read_text()
    if not _STAMP.exists() or _STAMP.read_text() != wanted:
        print("installing the peers into benchmarks/peers/.venv (a minute or two)", file=sys.stderr)
        venv.create(_VENV, with_pip=True)
        pip = [str(_VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "-r", str(_REQUIREMENTS)], check=True, stdout=sys.stderr)
        _STAMP.write_text(wanted)
    return _VENV / "bin" / "python"
