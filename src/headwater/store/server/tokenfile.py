"""The token file as it lies on disk: who may read it, when it changed, and no secret in any error."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path

from headwater.errors import Refused, WrongUse

_FILE_BYTES = 1 << 20


def read_document(path: Path) -> dict[str, object]:
    """The TOML in a file that only its owner may touch. Raises `Refused` or `WrongUse`."""
    try:
        return tomllib.loads(_read_private(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        # The parser's own text may quote the line, and with it the secret.
        place = re.search(r"line \d+, column \d+|end of document", str(error))
        at = f" at {place[0]}" if place else ""
        raise WrongUse(f"token file {path} is not TOML{at}; write [[token]] entries") from None


def signature(path: Path) -> tuple[int, ...] | None:
    """Changes with the file's content or its mode; None where there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    # ctime too: after a chmod that heals a refused file nothing else differs.
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _read_private(path: Path) -> str:
    """The text of a regular file that only its owner may touch, checked on what was opened."""
    try:
        # O_NONBLOCK: opening a pipe would wait for its writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            _check_private(os.fstat(handle).st_mode, path)
            content = file.read(_FILE_BYTES + 1)
    except OSError as error:
        raise WrongUse(f"token file {path} cannot be read: {error.strerror}") from None
    if len(content) > _FILE_BYTES:
        raise WrongUse(f"token file {path} is larger than {_FILE_BYTES:,} bytes; is it the right file?")
    try:
        return content.decode()
    except UnicodeDecodeError:
        # Its repr would hold the whole content.
        raise WrongUse(f"token file {path} is not UTF-8 text; is it the right file?") from None


def _check_private(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        raise Refused(f"token file {path} is not a regular file; put the tokens in a file and chmod 600 it")
    if mode & 0o077:
        raise Refused(
            f"token file {path} has mode {stat.S_IMODE(mode):03o}, others than its owner may use it; "
            f"run `chmod 600 {path}`"
        )
