"""From the addresses of stores to a store: greet each, find out who holds the same, fetch the index."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar

from headwater.engine.crew import Daemons
from headwater.errors import (
    DatasetError,
    DatasetNotFound,
    HeadwaterError,
    Incompatible,
    Refused,
    Unreachable,
    WrongUse,
)
from headwater.store.base import Store
from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection, Passing
from headwater.store.client.cutting import agree_if_cheap
from headwater.store.client.index import open_index
from headwater.store.client.link import Link
from headwater.store.client.remembered import recall, remember
from headwater.store.client.remote import Remote, RemoteStore
from headwater.store.client.replicas import Replicas
from headwater.store.wire import messages
from headwater.store.wire.catalogue import plain
from headwater.store.wire.messages import PROTOCOLS, VERSION, DatasetFacts, Hello, Welcome
from headwater.store.wire.payloads import Damaged

log = logging.getLogger("headwater")

T = TypeVar("T")

_REST_SECONDS = 0.2
_UNTRUSTED = re.compile(r"(?i)certificate.verify.failed|not in peer certificate")
"""How gRPC says what does not pass, as the silence of a store that is just starting does."""
_OF_ONE_STORE = (DatasetNotFound, Incompatible, Refused, Unreachable)
"""Why a store may be away although its replicas are not."""
_noted: set[tuple[str, str]] = set()
_DECIDING = {"fields": "fields", "labels, class names, columns or sizes": "content", "blocks": "blocks"}
"""What must be the same at all replicas: as it is called, and in `DatasetFacts`."""
_HINTS = {
    "grpc": "is the store running, and is the address right (grpc+tls:// with TLS, grpc:// without)?",
    "grpc+tls": "is the store running, is the address right (grpc:// without TLS), and are Link(ca=...) or "
    "--ca, and for mutual TLS cert and key, those that go with it?",
}


def open_stores(uris: Sequence[str], secret: Secret, link: Link, *, progress: bool | None = None) -> Store:
    """One store for all addresses: those with the same version are replicas, disjoint ones shards.

    At least one must answer. One that does not, or refuses, and was a replica when last seen, is used when it
    does.
    """
    if not uris:
        raise WrongUse("an empty list of stores; name at least one")
    connections = [Connection(Address.parse(uri), secret, link) for uri in uris]
    with ExitStack() as failing:  # or whoever tries to open again and again gathers threads
        for connection in connections:
            failing.callback(connection.close)
        store = _open_all(connections, progress=progress)
        failing.pop_all()
    return store


@dataclass(frozen=True)
class _Member:
    """A store of a group with one version; `welcome` is None for one that is away."""

    connection: Connection
    name: str
    welcome: Welcome | None


def _open_all(connections: Sequence[Connection], *, progress: bool | None) -> Store:
    versions: dict[str, list[_Member]] = {}
    away: list[tuple[Connection, HeadwaterError]] = []
    for connection, answer in zip(connections, _greet_all(connections), strict=True):
        try:
            version, member = _admit(connection, answer)
        except _OF_ONE_STORE as error:
            away.append((connection, error))
            continue
        versions.setdefault(version, []).append(member)
    for connection, why in sorted(away, key=lambda entry: isinstance(entry[1], Unreachable)):
        _place(connection, why, versions)
    stores = [_open_one(group, progress=progress) for _, group in sorted(versions.items())]
    if len(stores) == 1:
        return stores[0]
    from headwater.store.fleet import ShardedStore

    return ShardedStore(stores)


def _admit(connection: Connection, answer: Welcome | Exception) -> tuple[str, _Member]:
    """A store that greeted, by the version of its dataset; raises what it said instead."""
    if isinstance(answer, Exception):
        raise answer
    name = choose(connection.address, answer)
    version = answer.datasets[name].version
    remember(connection.address, name, version)
    return version, _Member(connection, name, answer)


def _greet_all(connections: Sequence[Connection]) -> list[Welcome | Exception]:
    """All at once, because one that is away takes its deadline."""
    if len(connections) == 1:
        return [greet(connections[0])]
    answers: SimpleQueue[tuple[int, Welcome | Exception]] = SimpleQueue()
    threads = Daemons(len(connections), "headwater-hello")

    def ask(number: int) -> None:
        try:
            answers.put((number, greet(connections[number])))
        except Exception as error:
            answers.put((number, error))

    for number in range(len(connections)):
        threads.submit(ask, number)
    found = dict(answers.get() for _ in connections)
    threads.shutdown()
    return [found[number] for number in range(len(connections))]


def _place(connection: Connection, error: HeadwaterError, versions: dict[str, list[_Member]]) -> None:
    """A store that is away belongs to those that hold what it held; if that is not known, it is an error."""
    seen = recall(connection.address)
    if seen is None or seen.version not in versions:
        if versions:
            error.add_note("whether it holds the same samples as others is not known; leave it out, or wait")
        raise error
    log.warning("%s is a replica and is used when it is back: %s", connection.address.place, error)
    versions[seen.version].append(_Member(connection, seen.name, None))


def greet(connection: Connection) -> Welcome:
    """Agree on a protocol; raises `Unreachable`, `Refused` or `Incompatible`."""
    hello = messages.encode(Hello(protocols=list(PROTOCOLS), version=VERSION))
    welcome = act(connection, "hello", hello, read=_read_welcome)
    place, version = connection.address.place, plain(welcome.version)
    if welcome.protocol not in PROTOCOLS:
        raise Incompatible(
            f"{place} (headwater {version}) speaks protocol {welcome.protocol}, "
            f"this client {list(PROTOCOLS)}; upgrade the older one"
        )
    _note_version(place, version)
    return welcome


def _note_version(store: str, version: str) -> None:
    """Say once that a store has another version than this client; the protocol says whether they can talk."""
    if version != VERSION and (store, version) not in _noted:
        _noted.add((store, version))
        log.warning("%s has headwater %s, this client %s", store, version, VERSION)


def act(connection: Connection, action: str, body: bytes = b"", *, read: Callable[[bytes], T]) -> T:
    """An action, tried again while the failure may pass; `read` raises `Damaged` for a bad answer."""
    begun = time.monotonic()
    while True:
        try:
            return read(connection.act(action, body))
        except (Passing, Damaged) as error:
            waited = time.monotonic() - begun
            patience = min(connection.link.deadline_seconds, connection.link.give_up_seconds)
            if waited + _REST_SECONDS >= patience or _UNTRUSTED.search(str(error)):
                raise _unreachable(connection.address, error) from error
        time.sleep(_REST_SECONDS)


def _unreachable(address: Address, error: HeadwaterError) -> Unreachable:
    if _UNTRUSTED.search(str(error)):
        return Unreachable(
            f"the certificate of {address.location} is not trusted: {error}; give what signed it as "
            "Link(ca=...) or --ca, and write the host as the certificate names it"
        )
    return Unreachable(f"{address.location} does not answer: {error}; {_HINTS[address.scheme]}")


def _read_welcome(answer: bytes) -> Welcome:
    try:
        welcome: Welcome = messages.decode(Welcome, answer)
    except HeadwaterError as error:
        raise Damaged(str(error)) from error
    if messages.is_altered(answer, welcome):
        raise Damaged("its greeting was altered on the way")
    return welcome


def choose(address: Address, welcome: Welcome) -> str:
    """The dataset that is meant; raises `DatasetNotFound` naming those that there are."""
    names = sorted(welcome.datasets)
    if address.dataset in welcome.datasets:
        return address.dataset
    if not address.dataset and len(names) == 1:
        return names[0]
    there = f"there are {', '.join(names)}" if names else "this token may read none"
    wanted = f"no dataset {address.dataset!r}" if address.dataset else "several datasets, or none,"
    raise DatasetNotFound(f"{wanted} at {address.place}; {there}; write {address.location}/NAME")


def _open_one(group: Sequence[_Member], *, progress: bool | None) -> RemoteStore:
    names = sorted({member.name for member in group})
    if len(names) > 1:
        raise WrongUse(f"replicas call the dataset {' and '.join(names)}; serve it under one name")
    welcomes = {m.connection.address.place: m.welcome for m in group if m.welcome is not None}
    facts = _common_facts(names[0], welcomes)
    replicas = Replicas([member.connection for member in group])
    for member, replica in zip(group, replicas.all, strict=True):
        if member.welcome is None:
            replica.failed(time.monotonic())
    agree_if_cheap(welcomes)
    index = open_index(replicas, names[0], facts, progress=progress)
    return RemoteStore(replicas, Remote(names[0], facts, welcomes, index))


def _common_facts(name: str, welcomes: Mapping[str, Welcome]) -> DatasetFacts:
    """Those of the first store; raises `DatasetError` if a batch would depend on which store answers."""
    first, *others = welcomes
    facts = welcomes[first].datasets[name]
    for other in others:
        theirs = welcomes[other].datasets[name]
        differing = [what for what, key in _DECIDING.items() if getattr(facts, key) != getattr(theirs, key)]
        if differing:
            raise DatasetError(
                f"stores {first} and {other} hold the same samples of {name!r} and differ in "
                f"{' and '.join(differing)}; serve both with the same settings and from the same layout"
            )
    return facts
