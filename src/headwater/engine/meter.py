"""Counts what a run does, from many threads."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from headwater.measure.stats import Stats

_ERRORS_KEPT = 1000


class Meter:
    """Adds up; `stats()` is a snapshot. One lock, taken once per chunk or batch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()
        self._work: Counter[str] = Counter()
        self._errors: dict[str, str] = {}

    def count(self, **amounts: int) -> None:
        """Add to the integer totals of `Stats` by name."""
        with self._lock:
            self._counts.update(amounts)

    def work(self, stage: str, seconds: float) -> None:
        with self._lock:
            self._work[stage] += seconds  # type: ignore[assignment]

    def wait(self, stage: str, seconds: float) -> None:
        with self._lock:
            self._waits[stage] += seconds  # type: ignore[assignment]

    def error(self, key: str, reason: str) -> None:
        """Remember why a sample failed, for the first thousand."""
        with self._lock:
            if len(self._errors) < _ERRORS_KEPT:
                self._errors[key] = reason

    def stats(self) -> Stats:
        with self._lock:
            counts: dict[str, Any] = dict(self._counts)
            return Stats(
                **counts,
                errors=dict(self._errors),
                wait_seconds=dict(self._waits),
                work_seconds=dict(self._work),
            )
