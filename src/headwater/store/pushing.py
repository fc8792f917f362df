"""A version of a model brought to many stores at once, to each in the cheapest way.

A store that is away is named and left behind; to push again later is all it takes to catch it up.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

from headwater.engine.crew import Daemons
from headwater.errors import HeadwaterError, ModelNotFound, ModelRefused, Unreachable, WrongUse
from headwater.models.path import Path, cheapest
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.store.client.link import Link
from headwater.store.client.models import StoreModels, models_of

Watch = Callable[[str, int, int], None]
"""Called with a store, the bytes of the version that have got there, and those of all that it needs."""

_REST_SECONDS = 1.0


@dataclass(frozen=True)
class Delivery:
    """What became of one store.

    `kind` is nothing, delta, chain or whole, as planned last; `sent_bytes` is all that was sent, with what
    had to be sent again. `error` is None if the version is there and in force.
    """

    store: str
    kind: str
    sent_bytes: int
    seconds: float
    error: HeadwaterError | None = None

    @property
    def away(self) -> bool:
        """Whether the store did not answer, so that pushing again later may do."""
        return isinstance(self.error, Unreachable)


def push(
    registry: Registry,
    stores: Sequence[str],
    reference: str,
    *,
    name: str | None = None,
    token: str | os.PathLike[str] | None = None,
    link: Link | None = None,
    wait_seconds: float = 0.0,
    watch: Watch = lambda store, have, total: None,
) -> list[Delivery]:
    """Have a version of the registry in force at each store, as `name` or under its own; what became of each.

    All stores at once, each in a thread. One that does not answer is tried again for `wait_seconds`. What
    fails at one store is in its `Delivery`, and keeps nothing from the others.
    """
    if not stores or len(set(stores)) < len(stores):
        raise WrongUse(f"the stores are {', '.join(stores) or 'none'}; name each once, and at least one")
    version = registry.version(reference)
    errand = _Errand(registry, version, name or version.name, token, link or Link())
    done: SimpleQueue[tuple[int, Delivery | BaseException]] = SimpleQueue()
    threads = Daemons(len(stores), "headwater-push")

    def run(number: int, store: str) -> None:
        try:
            done.put((number, errand.deliver(store, time.monotonic() + wait_seconds, watch)))
        except BaseException as error:
            done.put((number, error))

    for number, store in enumerate(stores):
        threads.submit(run, number, store)
    found = dict(done.get() for _ in stores)
    threads.shutdown()
    return [_delivery(found[number]) for number in range(len(stores))]


def _delivery(found: Delivery | BaseException) -> Delivery:
    if isinstance(found, BaseException):
        raise found
    return found


@dataclass(frozen=True)
class _Errand:
    """What is to be in force, and how to get to a store. Shared by the threads of a push."""

    registry: Registry
    version: ModelVersion
    name: str
    token: str | os.PathLike[str] | None
    link: Link
    planning: threading.Lock = field(default_factory=threading.Lock)

    def deliver(self, store: str, until: float, watch: Watch) -> Delivery:
        """To one store, tried again until then while it is away."""
        begun = time.monotonic()
        with models_of(store, token=self.token, link=self.link) as models:
            while True:
                trip = _Trip(self, store, models, watch)
                error = trip.run()
                if not isinstance(error, Unreachable) or time.monotonic() >= until:
                    break
                time.sleep(max(0.0, min(_REST_SECONDS, until - time.monotonic())))
            return Delivery(store, trip.kind, models.sent, time.monotonic() - begun, error)

    def plan(self, held: set[str]) -> Path:
        """One thread at a time: the next finds the delta that the first has made."""
        with self.planning:
            return cheapest(self.registry, held, self.version.digest)


@dataclass
class _Trip:
    """One try to bring the version to one store."""

    errand: _Errand
    store: str
    models: StoreModels
    watch: Watch
    kind: str = ""

    def run(self) -> HeadwaterError | None:
        """What went wrong, if anything did."""
        try:
            held = {version.digest for version in self.models.inventory().versions}
            try:
                self._bring(held)
            except (ModelRefused, ModelNotFound):
                if not held:
                    raise
                self._bring(set())  # what it says that it holds may be damaged there
        except HeadwaterError as error:
            return error
        return None

    def _bring(self, held: set[str]) -> None:
        path, version = self.errand.plan(held), self.errand.version
        self.kind, before, switched = path.kind, 0, False
        for part in path.parts:
            switched = part.version.digest == version.digest and version.name == self.errand.name
            tell = partial(self._tell, before, part.nbytes, path.nbytes)
            self.models.send(part, switch=switched, watch=tell)
            before += part.nbytes
        if not switched:
            self.models.switch(self.errand.name, version.digest)
        self.watch(self.store, path.nbytes, path.nbytes)

    def _tell(self, before: int, size: int, total: int, have: int, whole: int) -> None:
        self.watch(self.store, before + size * have // max(whole, 1), total)
