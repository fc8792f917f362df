"""What a store says of itself: greeting, health, status; whether it is draining, and what is under way."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from headwater.data.codecs.excerpts import known_codecs
from headwater.data.pipeline import library_versions
from headwater.errors import HeadwaterError, Incompatible, WrongUse
from headwater.store.local import LocalStore
from headwater.store.server.desk import Desk
from headwater.store.server.guard import Caller
from headwater.store.server.workers import Workers
from headwater.store.wire import messages
from headwater.store.wire.messages import PROTOCOLS, VERSION, DatasetFacts, Hello, Release, Welcome
from headwater.store.wire.pages import content_of

log = logging.getLogger("headwater")

_MOST_VERSIONS = 16

Answer = Callable[[bytes, Caller], bytes]
"""From the body of an action and who asks to what is sent back."""


class Stay:
    """One request under way. It also ends when nobody holds it any more: a stream may never be begun."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end: Callable[[], None] | None = end

    def end(self) -> None:
        """Only the first call counts."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def __del__(self) -> None:
        self.end()


class Talk:
    """Answers actions. Counts the streams under way, so that a drain knows when it is over."""

    def __init__(self, desk: Desk, workers: Workers, answers: Mapping[str, Answer] | None = None) -> None:
        """`answers` are those to the actions that are not about the store itself."""
        self._desk, self._workers, self._answers = desk, workers, answers or {}
        self._begun = time.monotonic()
        self._facts = {name: _facts(store) for name, store in desk.datasets.items()}
        self._idle = threading.Condition()
        self._under_way = 0
        self._seen: dict[str, float] = {}
        self._versions = {VERSION}
        self.draining = False
        self.http = 0
        """The port of HTTP, once it is known."""

    def serve(self, name: str) -> None:
        """Tell of a dataset of the desk that is new there, or another than before."""
        self._facts = {**self._facts, name: _facts(self._desk.datasets[name])}

    def answer(self, action: str, body: bytes, caller: Caller) -> bytes:
        """Raises `Incompatible`, or `HeadwaterError` for a message that is none."""
        if action in self._answers:
            return self._answers[action](body, caller)
        if action == "hello":
            return messages.encode(messages.sealed(self._welcome(messages.decode(Hello, body), caller)))
        if action == "health":
            return msgspec.json.encode(self.health())
        if action == "release":
            return msgspec.json.encode({"released": self._release(messages.decode(Release, body).ids)})
        if action == "status":
            return msgspec.json.encode(self.status(caller))
        raise HeadwaterError(f"this store does not answer the action {action!r}")

    def health(self) -> dict[str, str]:
        return {"status": "draining" if self.draining else "ok"}

    def status(self, caller: Caller) -> dict[str, object]:
        """Everything that `headwater top` shows."""
        budget = self._desk.budget
        return {
            "version": VERSION,
            "uptime_seconds": self.uptime,
            **self.health(),
            "datasets": {
                name: {"samples": facts.samples, "bytes": facts.bytes, "version": facts.version}
                for name, facts in self._visible(caller).items()
            },
            "quarantined": self._quarantined(caller),
            "metrics": self._desk.ledger.snapshot(),
            "budget": {
                "cores": budget.cores,
                "memory": budget.memory,
                "requests": budget.requests,
                "request_bytes": budget.request_bytes,
                "request_samples": budget.request_samples,
            },
        }

    def _quarantined(self, caller: Caller) -> list[int]:
        """Ids: all for who may release them, else those of the datasets that the caller may read."""
        found = sorted(self._workers.quarantined)
        if caller.may("admin"):
            return found
        stores = [self._desk.datasets[name] for name in self._visible(caller)]
        return [id for id in found if any(_holds(store, id) for store in stores)]

    def _release(self, ids: list[int]) -> list[int]:
        before = self._workers.quarantined
        self._workers.release(ids or None)
        return sorted(before - self._workers.quarantined)

    @property
    def uptime(self) -> float:
        return time.monotonic() - self._begun

    def begin(self, client: str | None = None) -> Stay:
        """Count a request from now until what is returned is ended, or dropped.

        One for samples names its `client`.
        """
        with self._idle:
            self._under_way += 1
            if client is not None:
                self._seen[client] = time.monotonic()
        return Stay(self._end)

    def clients(self) -> int:
        """Clients that asked for samples within the last minute."""
        lately = time.monotonic() - 60
        with self._idle:
            self._seen = {client: when for client, when in self._seen.items() if when > lately}
            return len(self._seen)

    def _end(self) -> None:
        with self._idle:
            self._under_way -= 1
            self._idle.notify_all()

    def drain(self, seconds: float) -> bool:
        """Take no more requests; whether those under way ended in time."""
        self.draining = True
        with self._idle:
            return self._idle.wait_for(lambda: not self._under_way, seconds)

    def _welcome(self, hello: Hello, caller: Caller) -> Welcome:
        common = sorted(set(hello.protocols) & set(PROTOCOLS))
        if not common:
            raise Incompatible(
                f"store {VERSION} speaks protocols {list(PROTOCOLS)}, client {hello.version} "
                f"{sorted(hello.protocols)[:8]}; upgrade the older one"
            )
        self._note_version(hello.version, caller)
        budget = self._desk.budget
        return Welcome(
            protocol=common[-1],
            version=VERSION,
            catalogue=dict(self._workers.catalogue),
            libraries=library_versions(),
            codecs=known_codecs(),
            datasets=dict(self._visible(caller)),
            request_bytes=budget.request_bytes,
            request_samples=budget.request_samples,
            limits=True,
            cores=budget.cores,
            http=self.http,
            cuts=True,
        )

    def _note_version(self, version: str, caller: Caller) -> None:
        """In the log, once, and not without end: a client can say anything."""
        if version not in self._versions and len(self._versions) <= _MOST_VERSIONS:
            self._versions.add(version)
            log.warning("client %s has headwater %r, this store %s", caller.name, version, VERSION)

    def _visible(self, caller: Caller) -> Mapping[str, DatasetFacts]:
        return {name: facts for name, facts in self._facts.items() if caller.may("read", name)}


def _holds(store: LocalStore, id: int) -> bool:
    try:
        store.index.position_of(np.array([id]))
    except WrongUse:
        return False
    return True


def _facts(store: LocalStore) -> DatasetFacts:
    index = store.index
    if not len(index):
        raise HeadwaterError(f"{store.uri} is empty; there is nothing to serve")
    return DatasetFacts(
        samples=len(index),
        bytes=int(index.sizes.sum()),
        version=index.version,
        content=content_of(index),
        fields=list(store.fields),
        blocks=store.blocks() is not None,
        cached_bytes=store.cached_bytes,
    )
