"""Labels brought up to a model's version by a job at each store that holds samples; see also `here`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from headwater.engine.together import all_at_once
from headwater.errors import HeadwaterError, Unreachable, WrongUse
from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.jobs import JobClient
from headwater.store.client.link import Link
from headwater.store.client.opening import choose, greet
from headwater.store.jobs.record import DONE, RELABEL, UNFINISHED
from headwater.store.wire.jobmessages import JobFacts

Watch = Callable[[str, JobFacts], None]
"""Told of each store's job whenever it was looked at; from several threads."""
Begin = Callable[[JobClient, str], JobFacts]
"""Has a store begin a job on a dataset, or find the one that does the same."""

_SHORTEST_REST, _LONGEST_REST = 0.5, 10.0
_LATE = 0.1  # of the time that it took: so much later than it came is an end seen


@dataclass(frozen=True)
class Wish:
    """What to label, and with what. Empty names mean the only dataset, and the only model, that there is.

    `opinions`: what the model thinks of samples with somebody else's label is kept beside that.
    `over_imports`: it replaces labels that came with the data. A human's label is never replaced.
    """

    dataset: str = ""
    model: str = ""
    opinions: bool = False
    over_imports: bool = False


@dataclass(frozen=True)
class JobAtStore:
    """What became of one store: its job as it was last seen, and the bytes of the messages about it.

    They are those of both ways, without what carries them.
    """

    store: str
    job: JobFacts | None
    bytes_moved: int
    error: HeadwaterError | None = None

    @property
    def ok(self) -> bool:
        """Whether its job is done, or goes on."""
        return self.error is None and self.job is not None and self.job.state in (DONE, *UNFINISHED)

    @property
    def failure(self) -> HeadwaterError | None:
        """What kept it from the store, or what its job ended with."""
        if self.error is None and self.job is not None and self.job.error:
            return HeadwaterError(self.job.error)
        return self.error


@dataclass(frozen=True)
class Access:
    """How stores are spoken to."""

    token: str | os.PathLike[str] | None = None
    link: Link = field(default_factory=Link)


def relabel_at(
    stores: Sequence[str],
    wish: Wish = Wish(),  # noqa: B008 - frozen
    access: Access = Access(),  # noqa: B008
    *,
    wait: bool = True,
    watch: Watch = lambda store, job: None,
) -> list[JobAtStore]:
    """Begin the job at each store, or find the one that is under way, and `wait` until it ends.

    All stores at once, each in a thread; what fails at one keeps nothing from the others. To stop waiting
    stops no job: asking again finds it.
    """

    def begin(client: JobClient, dataset: str) -> JobFacts:
        return client.start(
            RELABEL,
            dataset=dataset,
            model=wish.model,
            opinions=wish.opinions,
            over_imports=wish.over_imports,
        )

    return run_at(stores, begin, access, dataset=wish.dataset, wait=wait, watch=watch)


def run_at(
    stores: Sequence[str],
    begin: Begin,
    access: Access,
    *,
    dataset: str = "",
    wait: bool = True,
    watch: Watch = lambda store, job: None,
) -> list[JobAtStore]:
    """A job of any kind at each store, on `dataset` or on the only one, as `relabel_at` has it."""
    if not stores or len(set(stores)) < len(stores):
        raise WrongUse(f"the stores are {', '.join(stores) or 'none'}; name each once, and at least one")
    calls = [partial(_at_store, store, begin, access, dataset, wait, watch) for store in stores]
    return all_at_once(calls, name="headwater-jobs")


def stop_at(stores: Sequence[str], wish: Wish, access: Access) -> list[JobAtStore]:
    """End the unfinished relabel jobs of each store, of all its datasets unless one is named.

    All stores at once; one that cannot be asked has an error instead of a job.
    """
    calls = [partial(_stop_at_store, store, wish, access) for store in stores]
    return [one for ended in all_at_once(calls, name="headwater-relabel") for one in ended]


def _stop_at_store(store: str, wish: Wish, access: Access) -> list[JobAtStore]:
    with _client(store, access) as (client, address):
        try:
            name = wish.dataset or address.dataset
            jobs = [job for job in client.look() if job.kind == RELABEL and job.state in UNFINISHED]
            wanted = [job.id for job in jobs if not name or job.dataset == name]
            found = client.stop(wanted) if wanted else []
        except HeadwaterError as error:
            return [JobAtStore(store, None, client.bytes_moved, error)]
        return [JobAtStore(store, job, client.bytes_moved) for job in found]


def _at_store(store: str, begin: Begin, access: Access, dataset: str, wait: bool, watch: Watch) -> JobAtStore:
    with _client(store, access) as (client, address):
        job = None
        try:
            job = begin(client, dataset or address.dataset or _only_dataset(address, access))
            watch(store, job)
            begun = time.monotonic()
            while wait and job.state in UNFINISHED:
                time.sleep(rest_seconds(time.monotonic() - begun))
                job = _look(client, job, access.link.give_up_seconds)
                watch(store, job)
        except HeadwaterError as error:
            return JobAtStore(store, job, client.bytes_moved, error)
        return JobAtStore(store, job, client.bytes_moved)


def rest_seconds(waited: float) -> float:
    """How long to rest between two looks at a job, after so many seconds: looks cross the link, too."""
    return min(_LONGEST_REST, max(_SHORTEST_REST, _LATE * waited))


def _look(client: JobClient, job: JobFacts, patience: float) -> JobFacts:
    """The job as it stands; a store that is being started again is waited for."""
    end = time.monotonic() + patience
    while True:
        try:
            (found,) = client.look([job.id]) or [job]
            return found
        except Unreachable:
            if time.monotonic() >= end:
                raise


@contextmanager
def _client(store: str, access: Access) -> Iterator[tuple[JobClient, Address]]:
    address = Address.parse(store)
    client = JobClient(Connection(address, Secret(access.token), access.link))
    try:
        yield client, address
    finally:
        client.close()


def _only_dataset(address: Address, access: Access) -> str:
    connection = Connection(address, Secret(access.token), access.link)
    try:
        return choose(address, greet(connection))
    finally:
        connection.close()
