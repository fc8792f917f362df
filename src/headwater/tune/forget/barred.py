"""What the system does not let a command do: said with the file and with what helps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from headwater.errors import DatasetError

_GO_ON = "what was done stays done: make it one that may be written to, and say the same again"
REMEDIES = {
    "look": "nothing was changed; make it one that can be read",
    "record": "nothing was changed; make it one that may be written to",
    "replay": (
        "nothing was changed, and the request is dropped: make it one that may be written to, or leave "
        "models as they are for now with --no-model"
    ),
    "bring": f"{_GO_ON}; or say it with --no-model",
    "caches": f"{_GO_ON}; or delete the cache, and set HEADWATER_CACHE to another folder for that",
    "scan": "all is forgotten, and that was not looked through: make it one that can be read, and scan again",
    "files": f"{_GO_ON}; or say it without --delete-files, and delete the files yourself",
}
"""What helps at a step; what is not here goes on."""


@contextmanager
def told(step: str) -> Iterator[None]:
    """Raises `DatasetError` for what the system does not allow."""
    try:
        yield
    except OSError as error:
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a file"
        raise DatasetError(f"{where}: {error.strerror or error}; {REMEDIES.get(step, _GO_ON)}") from error
