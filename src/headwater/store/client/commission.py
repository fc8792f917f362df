"""A job that somebody waits for: begun at one of several replicas, looked at, and its rows fetched."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headwater.errors import DatasetStale, HeadwaterError, StoreLost, Unreachable, WrongUse
from headwater.store.client.connection import Connection
from headwater.store.client.errand import Abandoned, Errand
from headwater.store.client.jobs import JobClient
from headwater.store.client.remote import RemoteStore
from headwater.store.client.replicas import Replicas
from headwater.store.jobs.record import DONE, UNFINISHED
from headwater.store.wire import messages, payloads, selectionpages
from headwater.store.wire.jobmessages import JobFacts
from headwater.store.wire.messages import SelectionRequest
from headwater.store.wire.payloads import Damaged
from headwater.store.wire.selectionpages import Chosen, join

log = logging.getLogger("headwater")

Over = Callable[[], bool]
Begin = Callable[[Connection, JobClient], JobFacts]
"""Begins the job at a store."""

_SHORTEST_REST, _LONGEST_REST = 0.05, 2.0
_LATE = 0.05  # of the time that it took: so much later than it came is an end seen


@dataclass(frozen=True, eq=False)
class Answer:
    """A job that is done, what it has chosen, and the bytes that crossed the link for both."""

    job: JobFacts
    chosen: Chosen
    bytes_moved: int


class Commission:
    """Has one of several replicas do a job, and another if that one is lost. `what` is a word for it."""

    def __init__(self, store: RemoteStore, what: str) -> None:
        self._store, self._what = store, what
        self._order = [replica.connection for replica in store.replicas.all]

    def run(
        self, begin: Begin, *, over: Over = lambda: False, seen: Callable[[JobFacts], None] = lambda job: None
    ) -> Answer:
        """`seen` is told how the job stands, now and then.

        Raises `StoreLost` if all replicas were lost and did not come back in time, `Refused`, `WrongUse` for
        what the store does not take, other errors of its job, and `Abandoned` when it is `over`.
        """
        begun, names = time.monotonic(), self._store.replicas.names
        while True:
            for connection in tuple(self._order):
                try:
                    return self._at(connection, begin, over, seen)
                except Unreachable as error:
                    log.warning("no %s from %s: %s", self._what, connection.address.place, error)
                    self._order.append(self._order.pop(self._order.index(connection)))
                    lost = error
            if time.monotonic() - begun >= self._store.replicas.link.give_up_seconds or over():
                said = f"no {self._what} from {names}: {lost}"
                raise StoreLost(said, store=names, dataset=self._store.known.name) from lost

    def _at(
        self, connection: Connection, begin: Begin, over: Over, seen: Callable[[JobFacts], None]
    ) -> Answer:
        jobs = JobClient(connection)
        job = begin(connection, jobs)
        if job.version != self._store.index.version:
            raise DatasetStale(f"{connection.address.place} serves another version by now; open it again")
        job = self._wait(jobs, job, over, seen)
        if job.state != DONE:
            place, why = connection.address.place, job.error or "somebody ended it"
            raise HeadwaterError(f"the {self._what} at {place} {job.state}: {why}")
        chosen = self._fetch(connection, job)
        return Answer(job, chosen, jobs.bytes_moved + chosen.nbytes)

    def _wait(self, jobs: JobClient, job: JobFacts, over: Over, seen: Callable[[JobFacts], None]) -> JobFacts:
        """Until the job ends; a store that is being started again goes on with it."""
        begun = heard = time.monotonic()
        link = self._store.replicas.link
        while job.state in UNFINISHED:
            if over():
                with suppress(HeadwaterError):
                    jobs.stop([job.id])
                raise Abandoned(f"nobody waits for this {self._what} any more")
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
            seen(job)
        return job

    def _fetch(self, connection: Connection, job: JobFacts) -> Chosen:
        """All pages; raises `HeadwaterError` if they are not what the job has come to, or are gone."""
        count, parts, start = job.counts.get("chosen", 0), [], 0
        try:
            while start < count <= len(self._store.index):
                parts.append(self._page(connection, job.id, start))
                start += len(parts[-1].ids)
        except WrongUse as error:  # another job may well come to its end
            raise HeadwaterError(f"{connection.address.place} has no result of its job: {error}") from error
        if len({part.rows.shape[1] for part in parts}) > 1 or (found := join(parts)).digest() != job.result:
            raise HeadwaterError(f"what {connection.address.place} sends is not what its job has come to")
        return found

    def _page(self, connection: Connection, job: str, start: int) -> Chosen:
        known = self._store.known
        request = SelectionRequest(known.name, self._store.index.version, self._store.client, job, start)
        ticket = messages.encode(request)
        seal = payloads.seal_of(ticket)
        return Errand(Replicas([connection]), ticket, lambda reply: _accept(reply, seal)).run()


def _accept(reply: Sequence[tuple[Any, Any]], seal: int) -> Chosen:
    if len(reply) != 1 or reply[0][1] is None or not len(reply[0][0]):
        raise Damaged(f"{len(reply)} pages of a selection instead of one")
    batch, digest = reply[0]
    return selectionpages.read_selection(batch, digest.to_pybytes(), seal=seal)
