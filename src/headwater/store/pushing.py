"""A version of a model brought to many stores at once, to each in the cheapest way.

A store that is away is named and left behind; to push again later is all it takes to catch it up.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from headwater.engine.together import all_at_once
from headwater.errors import HeadwaterError, ModelNotFound, ModelRefused, Unreachable, WrongUse
from headwater.models.evidence import QUANTISED, require_measured
from headwater.models.path import Path, cheapest, find_approximation
from headwater.models.registry import Registry
from headwater.models.runtime import precision_of_graph
from headwater.models.version import ModelVersion
from headwater.store.client.connection import Connection
from headwater.store.client.link import Link
from headwater.store.client.models import StoreModels, models_of
from headwater.store.wire.modelmessages import Inventory

Watch = Callable[[str, int, int], None]
"""Called with a store, the bytes of the version that have got there, and those of all that it needs."""

_REST_SECONDS = 1.0
_NOTHING = Inventory({}, [])


@dataclass(frozen=True)
class Terms:
    """What may come into force at a store beside exact and measured versions.

    `approximate`: where a store holds another version, one that is near, if that takes fewer bytes.
    `unmeasured`: int8 layers whose manifest does not say that enough labels stay.
    """

    approximate: bool = False
    unmeasured: bool = False


STRICT = Terms()


@dataclass(frozen=True)
class Rounding:
    """What an approximation costs and saves: how far a weight is off at most, and the bytes of the exact."""

    largest_error: float
    exact_bytes: int


@dataclass(frozen=True)
class Delivery:
    """What became of one store.

    `kind` is nothing, delta, chain or whole, as planned last; `sent_bytes` is all that was sent, with what
    had to be sent again. `error` is None if the version is there and in force. `version` is the digest of
    what was planned last: of an approximation where there is a `rounding`, of the int8 version where the
    store has made that of the one that was to come, and has it in force.
    """

    store: str
    kind: str
    sent_bytes: int
    seconds: float
    error: HeadwaterError | None = None
    version: str = ""
    rounding: Rounding | None = None

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
    terms: Terms = STRICT,
    watch: Watch = lambda store, have, total: None,
) -> list[Delivery]:
    """Have a version of the registry in force at each store, as `name` or under its own; what became of each.

    All stores at once, each in a thread. One that does not answer is tried again for `wait_seconds`. What
    fails at one store is in its `Delivery`, and keeps nothing from the others. `terms` say what may come into
    force besides. A store that has made int8 layers of this very version, and has them in force, keeps them.
    """
    version = registry.version(reference)
    errand = _Errand(registry, version, name or version.name, token, link or Link(), terms)
    return errand.deliver_all(stores, time.monotonic() + wait_seconds, watch)


def bring(
    registry: Registry,
    stores: Sequence[str],
    reference: str,
    *,
    token: str | os.PathLike[str] | None = None,
    link: Link | None = None,
) -> list[Delivery]:
    """Have a version at each store as `push` does, but leave in force there what is."""
    errand = _Errand(registry, registry.version(reference), None, token, link or Link())
    return errand.deliver_all(stores, time.monotonic(), lambda store, have, total: None)


def bring_over(registry: Registry, connection: Connection, reference: str) -> Delivery:
    """The same for one store, over a connection that is there and stays."""
    errand = _Errand(registry, registry.version(reference), None, None, connection.link)
    place, models = connection.address.place, StoreModels(connection)
    return errand.deliver_by(models, place, time.monotonic(), lambda store, have, total: None)


@dataclass(frozen=True)
class _Errand:
    """What is to be there, in force under a name or under none, and how to get to a store.

    Shared by the threads of a push.
    """

    registry: Registry
    version: ModelVersion
    name: str | None
    token: str | os.PathLike[str] | None
    link: Link
    terms: Terms = STRICT
    planning: threading.Lock = field(default_factory=threading.Lock)

    def deliver_all(self, stores: Sequence[str], until: float, watch: Watch) -> list[Delivery]:
        """To all at once; raises `WrongUse` for none, and for one that is named twice."""
        if not stores or len(set(stores)) < len(stores):
            raise WrongUse(f"the stores are {', '.join(stores) or 'none'}; name each once, and at least one")
        calls = [partial(self.deliver, store, until, watch) for store in stores]
        return all_at_once(calls, name="headwater-push")

    def deliver(self, store: str, until: float, watch: Watch) -> Delivery:
        """To one store, tried again until then while it is away."""
        with models_of(store, token=self.token, link=self.link) as models:
            return self.deliver_by(models, store, until, watch)

    def deliver_by(self, models: StoreModels, store: str, until: float, watch: Watch) -> Delivery:
        begun = time.monotonic()
        while True:
            trip = _Trip(self, store, models, watch)
            error = trip.run()
            if not isinstance(error, Unreachable) or time.monotonic() >= until:
                break
            time.sleep(max(0.0, min(_REST_SECONDS, until - time.monotonic())))
        seconds, plan = time.monotonic() - begun, trip.plan
        return Delivery(
            store, plan.kind, models.sent, seconds, error, version=plan.digest, rounding=plan.rounding
        )

    def plan(self, there: Inventory) -> _Plan:
        """The cheapest way; to what the store has made int8 of it, where that is in force."""
        found = self._find_way(there)
        int8 = _find_int8(there, self.name or "", found.digest)
        return found if int8 is None else replace(found, digest=int8)

    def check(self, there: Inventory) -> None:
        """Raise `ModelRefused` for what the store would refuse to put in force, before anything is sent."""
        if self.name is None or self.terms.unmeasured:
            return
        if self.version.digest not in there.current.get(self.name, [])[:1]:
            require_measured(self.version, self._trunk)

    @property
    def _trunk(self) -> bytes:
        return self.registry.graph(self.version.graphs["trunk"])

    @property
    def _may_round(self) -> bool:
        """What is near int8 layers is another model, which nobody has measured."""
        return self.terms.approximate and (self.terms.unmeasured or precision_of_graph(self._trunk) != "int8")

    def _find_way(self, there: Inventory) -> _Plan:
        """One thread at a time: the next finds the delta that the first has made."""
        held = {facts.digest for facts in there.versions}
        graphs = {graph for facts in there.versions for graph in facts.graphs}
        with self.planning:
            exact = cheapest(self.registry, held, self.version.digest, graphs=graphs)
            if exact.parts and self._may_round:
                near = find_approximation(self.registry, held, self.version.digest)
                path = cheapest(self.registry, held, near.digest, graphs=graphs)
                if path.nbytes < exact.nbytes:
                    return _Plan(near.digest, path, self._find_rounding(near, exact))
        return _Plan(self.version.digest, exact)

    def _find_rounding(self, near: ModelVersion, exact: Path) -> Rounding | None:
        """None for the version itself: int8 steps may reach it to the bit, in fewer bytes."""
        if near.digest == self.version.digest:
            return None
        return Rounding(near.made["largest error"], exact.nbytes)


def _find_int8(there: Inventory, name: str, version: str) -> str | None:
    """The int8 version that a store has made of another, if both are there and that one is in force."""
    held = {facts.digest: facts for facts in there.versions}
    found = next(map(held.get, there.current.get(name, [])), None)
    if found is None or version not in held:
        return None
    return found.digest if (found.by, found.parent) == (QUANTISED, version) else None


@dataclass(frozen=True)
class _Plan:
    """The digest of what a store is to have in force in the end, and the way there."""

    digest: str = ""
    path: Path | None = None
    rounding: Rounding | None = None

    @property
    def kind(self) -> str:
        return "" if self.path is None else self.path.kind


@dataclass
class _Trip:
    """One try to bring the version to one store."""

    errand: _Errand
    store: str
    models: StoreModels
    watch: Watch
    plan: _Plan = field(default_factory=_Plan)

    def run(self) -> HeadwaterError | None:
        """What went wrong, if anything did."""
        try:
            there = self.models.inventory()
            self.errand.check(there)
            try:
                self._bring(there)
            except (ModelRefused, ModelNotFound):
                if not there.versions:
                    raise
                self._bring(_NOTHING)  # what it says that it holds may be damaged there
        except HeadwaterError as error:
            return error
        return None

    def _bring(self, there: Inventory) -> None:
        self.plan = self.errand.plan(there)
        name, digest, path = self.errand.name, self.plan.digest, self.plan.path
        assert path is not None
        unmeasured = self.errand.terms.unmeasured
        before, switched = 0, False
        for part in path.parts:
            switched = part.version.digest == digest and part.version.name == name
            tell = partial(self._tell, before, part.nbytes, path.nbytes)
            self.models.send(part, switch=switched, unmeasured=unmeasured, watch=tell)
            before += part.nbytes
        if name is not None and not switched:
            self.models.switch(name, digest, unmeasured=unmeasured)
        self.watch(self.store, path.nbytes, path.nbytes)

    def _tell(self, before: int, size: int, total: int, have: int, whole: int) -> None:
        self.watch(self.store, before + size * have // max(whole, 1), total)
