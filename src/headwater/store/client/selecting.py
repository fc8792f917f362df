"""Samples that a store selects among its own: asked for by a job, waited for, and fetched page by page."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.errors import DatasetStale, HeadwaterError, StoreLost, Unreachable
from headwater.store.client.connection import Connection
from headwater.store.client.errand import Abandoned, Errand
from headwater.store.client.jobs import JobClient
from headwater.store.client.remote import RemoteStore
from headwater.store.client.replicas import Replicas
from headwater.store.jobs.record import DONE, SELECT, UNFINISHED
from headwater.store.wire import messages, pages, payloads
from headwater.store.wire.messages import JobFacts, SelectionRequest, SelectionWish
from headwater.store.wire.payloads import Damaged

log = logging.getLogger("headwater")

Bring = Callable[[Connection], int]
"""Sees to it that a store holds the proxy; the bytes that crossed the link for it."""
Over = Callable[[], bool]

_SHORTEST_REST, _LONGEST_REST = 0.05, 2.0
_LATE = 0.05  # of the time that it took: so much later than it came is an end seen


@dataclass(frozen=True, eq=False)
class Selected:
    """Ids with weights, out of so many samples, and what it took.

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
        self._order = [replica.connection for replica in store.replicas.all]

    def run(self, model: str, wish: SelectionWish, *, over: Over = lambda: False) -> Selected:
        """What a store selects with a version of a model that it holds, or is brought.

        Raises `StoreLost` if all replicas were lost and did not come back in time, `Refused`, `WrongUse` for
        what the store does not take, other errors of its job, and `Abandoned` when it is `over`.
        """
        begun, names = time.monotonic(), self._store.replicas.names
        while True:
            for connection in tuple(self._order):
                try:
                    return self._at(connection, model, wish, over)
                except Unreachable as error:
                    log.warning("no selection from %s: %s", connection.address.place, error)
                    self._order.append(self._order.pop(self._order.index(connection)))
                    lost = error
            if time.monotonic() - begun >= self._store.replicas.link.give_up_seconds or over():
                name = self._store.known.name
                raise StoreLost(f"no selection from {names}: {lost}", store=names, dataset=name) from lost

    def _at(self, connection: Connection, model: str, wish: SelectionWish, over: Over) -> Selected:
        moved, jobs = self._bring(connection), JobClient(connection)
        job = jobs.start(SELECT, dataset=self._store.known.name, model=model, selection=wish)
        if job.version != self._store.index.version:
            raise DatasetStale(f"{connection.address.place} serves another version by now; open it again")
        job = self._wait(jobs, job, over)
        if job.state != DONE:
            place = connection.address.place
            raise HeadwaterError(f"the selection at {place} {job.state}: {job.error or 'somebody ended it'}")
        ids, weights = self._fetch(connection, job)
        return Selected(
            ids,
            weights,
            len(self._store.index),
            job.said,
            counts=job.counts,
            seconds=job.figures.get("scoring_seconds", 0.0) + job.figures.get("choosing_seconds", 0.0),
            bytes_moved=moved + jobs.bytes_moved + ids.nbytes + weights.nbytes,
        )

    def _wait(self, jobs: JobClient, job: JobFacts, over: Over) -> JobFacts:
        """Until the job ends; a store that is being started again goes on with it."""
        begun = heard = time.monotonic()
        link = self._store.replicas.link
        while job.state in UNFINISHED:
            if over():
                with suppress(HeadwaterError):
                    jobs.stop([job.id])
                raise Abandoned("nobody waits for this selection any more")
            time.sleep(min(_LONGEST_REST, max(_SHORTEST_REST, _LATE * (time.monotonic() - begun))))
            try:
                found = jobs.look([job.id])
            except Unreachable:
                if len(self._order) > 1 or time.monotonic() - heard >= link.give_up_seconds:
                    raise
                continue
            if not found:
                raise Unreachable("the store has forgotten its job; was its state removed?")
            job, heard = found[0], time.monotonic()
        return job

    def _fetch(self, connection: Connection, job: JobFacts) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """All pages; raises `HeadwaterError` if they are not what the job has selected."""
        count, parts, start = job.counts.get("chosen", 0), [_NOTHING], 0
        while start < count <= len(self._store.index):
            parts.append(self._page(connection, job.id, start))
            start += len(parts[-1][0])
        ids, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
        if pages.selection_digest(ids, weights) != job.result:
            raise HeadwaterError(f"what {connection.address.place} sends is not what its job has selected")
        return ids, weights

    def _page(
        self, connection: Connection, job: str, start: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        known = self._store.known
        request = SelectionRequest(known.name, self._store.index.version, self._store.client, job, start)
        ticket = messages.encode(request)
        seal = payloads.seal_of(ticket)
        return Errand(Replicas([connection]), ticket, lambda reply: _accept(reply, seal)).run()


_NOTHING = np.empty(0, np.int64), np.empty(0, np.float32)


def _accept(reply: Sequence[tuple[Any, Any]], seal: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    if len(reply) != 1 or reply[0][1] is None or not len(reply[0][0]):
        raise Damaged(f"{len(reply)} pages of a selection instead of one")
    batch, digest = reply[0]
    return pages.read_selection(batch, digest.to_pybytes(), seal=seal)
