"""Arrays in files without a name: the system may write them out, and they go with their last user."""

from __future__ import annotations

import logging
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger("headwater")

LEAST_BYTES = 1 << 24
"""Of an array that is worth a file; smaller ones stay in memory."""


def make_column(shape: tuple[int, ...], dtype: Any, unknown: float, *, folder: Path | None) -> NDArray[Any]:
    """An array full of `unknown`, in a file below `folder` if it is large and there is room, else in memory.

    The room is taken at once: a disk that is full only when a page is written would end the process.
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if folder is not None and nbytes >= LEAST_BYTES:
        try:
            column = _map(shape, dtype, nbytes, folder)
            if unknown != 0:  # what a new file holds already
                column.fill(unknown)
            return column
        except OSError as error:
            log.warning("%d bytes of signals stay in memory, not in %s: %s", nbytes, folder, error.strerror)
    return np.full(shape, unknown, dtype)


def _map(shape: tuple[int, ...], dtype: Any, nbytes: int, folder: Path) -> NDArray[Any]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, nbytes)
        return np.asarray(np.memmap(file, dtype, "r+", shape=shape))
