"""How long a call takes on a machine that does other things too."""

from __future__ import annotations

import time
from collections.abc import Callable


def least_seconds(
    call: Callable[[], object], times: int = 3, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The shortest of so many calls: what others do only ever makes one longer."""
    found = []
    for _ in range(times):
        begun = clock()
        call()
        found.append(clock() - begun)
    return min(found)
