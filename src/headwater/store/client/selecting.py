"""Samples that a store selects among its own, by a job that is waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headwater.store.client.commission import Commission, Over
from headwater.store.client.connection import Connection
from headwater.store.client.jobs import JobClient
from headwater.store.client.remote import RemoteStore
from headwater.store.jobs.record import SELECT
from headwater.store.wire.jobmessages import JobFacts, SelectionWish

Bring = Callable[[Connection], int]
"""Sees to it that a store holds the proxy; the bytes that crossed the link for it."""


@dataclass(frozen=True, eq=False)
class Selected:
    """Ids with weights, not clipped, out of so many samples, and what it took.

    `counts` are what became of samples: scored, unlabelled, failed, chosen. `seconds` are those of scoring
    and choosing, at the slowest store; `bytes_moved` all that crossed the link for it, the proxy included.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    samples: int
    reason: str
    counts: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    bytes_moved: int = 0


class Selecting:
    """Has one of several replicas select, and another if that one is lost."""

    def __init__(self, store: RemoteStore, *, bring: Bring = lambda connection: 0) -> None:
        self._store, self._bring = store, bring
        self._commission = Commission(store, "selection")

    def run(self, model: str, wish: SelectionWish, *, over: Over = lambda: False) -> Selected:
        """Raises what `Commission.run` does."""
        moved = 0

        def begin(connection: Connection, jobs: JobClient) -> JobFacts:
            nonlocal moved
            moved = self._bring(connection)
            return jobs.start(SELECT, dataset=self._store.known.name, model=model, selection=wish)

        found = self._commission.run(begin, over=over)
        figures = found.job.figures
        return Selected(
            found.chosen.ids,
            found.chosen.weights,
            len(self._store.index),
            found.job.said,
            counts=found.job.counts,
            seconds=figures.get("scoring_seconds", 0.0) + figures.get("choosing_seconds", 0.0),
            bytes_moved=moved + found.bytes_moved,
        )
