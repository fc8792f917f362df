"""What a run moved, served and waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Stats:
    """Totals since a loader was made. Seconds of work are summed over threads, waits are wall time."""

    samples: int = 0
    batches: int = 0
    epochs: int = 0
    bytes_moved: int = 0
    """Bytes that reached the trainer's process from storage."""
    bytes_raw: int = 0
    """Bytes that would have moved had every sample been read as the file it is."""
    cache_hits: int = 0
    """Samples that were held at the trainer, so that they did not move."""
    cache_misses: int = 0
    """Samples that a cache was asked for and did not hold."""
    stand_ins: int = 0
    """Samples for which a near-duplicate that was held was served."""
    skipped: int = 0
    substituted: int = 0
    errors: Mapping[str, str] = field(default_factory=dict)
    """The first samples that failed, by key, with the reason."""
    wait_seconds: Mapping[str, float] = field(default_factory=dict)
    """How long the training loop waited for a batch, by the stage that it waited for."""
    work_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent in each stage, summed over threads."""
    planning_failed: str = ""
    """Why offloading is no longer planned, so that files are sent; empty while nothing went wrong."""
    selecting_ended: str = ""
    """Why a selector at the trainer selects no more, so that epochs visit everything; empty while it does."""

    @property
    def waited(self) -> float:
        """Seconds that the training loop waited in all."""
        return sum(self.wait_seconds.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)
