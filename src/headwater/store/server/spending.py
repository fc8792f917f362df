"""CPU for work that waits instead of being pushed back: reads and predictions first, then all else."""

from __future__ import annotations

import time
from collections.abc import Callable

from headwater.engine.budget import Cores, Reservation

PAUSE_SECONDS = 0.02
"""Between two tries."""
_URGENT = ("predict", "read")
_PATIENCE = 0.5
_LEFT_SECONDS = 0.1  # of each core


def set_aside(cores: Cores, seconds: float, *, priority: str, gone: Callable[[], bool]) -> Reservation | None:
    """Try once to set CPU aside for a piece of work; None: not now.

    What is not urgent never stands in line, where reads would wait behind it, and leaves some for them.
    """
    if priority in _URGENT:
        return cores.reserve(seconds, _PATIENCE, gone=gone)
    return cores.reserve(seconds, 0.0, leave=cores.cores * _LEFT_SECONDS)


def pause() -> None:
    time.sleep(PAUSE_SECONDS)
