"""CPU for work of a job that cannot be cut small, a stretch of it at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from headwater.engine.budget import Gone

Turn = Callable[[float], AbstractContextManager[None]]
"""What a stretch of work is done inside of, of about so many seconds, where others want the cores too."""


class Pace:
    """Sets aside for each stretch what a sample of the last one took; `seconds` is CPU of a sample."""

    def __init__(self, spend: Turn, over: Callable[[], bool], seconds: float = 0.0) -> None:
        self._spend, self._over, self.seconds = spend, over, seconds

    @contextmanager
    def turn(self, samples: int) -> Iterator[None]:
        """A stretch over so many samples; raises `Gone` if the job is over."""
        if self._over():
            raise Gone("nobody waits for this job any more")
        with self._spend(self.seconds * samples):
            begun = time.thread_time()
            yield
            self.seconds = (time.thread_time() - begun) / max(1, samples)
