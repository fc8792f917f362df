"""Features from a store: what its frozen layers make of samples, which stay where they are."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.engine.fetching import Fetched, Wanted
from headwater.errors import StoreLost
from headwater.store.client.errand import Errand, Errands, TooSlow, locate
from headwater.store.client.remote import RemoteStore, accept, error_of, join
from headwater.store.wire import messages, payloads, vectors
from headwater.store.wire.messages import FeatureRequest
from headwater.store.wire.payloads import Parcel

Halves = NDArray[np.float16]

LOT = 64
"""Samples of a request: it should end well before its deadline, at a slow store too."""


class FeatureReader:
    """A `Reader` whose values are vectors of float16, for one run.

    `trunk` is the digest of the frozen layers, `width` how many features they give. `steps` are those per
    sample that images go through, if not the model's own; `seed`, and the epoch of what is wanted, key their
    draws. With a `cut` the layers end there, and `width` is that of the cut. Features come packed; what
    crosses at a cut does not, because it saves a twelfth there and takes longer. `fetch` raises
    `ModelNotFound` where no store holds the trunk, or the trunk has no such cut.
    """

    def __init__(
        self,
        store: RemoteStore,
        trunk: str,
        *,
        width: int,
        steps: Sequence[Mapping[str, Any]] = (),
        seed: int = 0,
        cut: str = "",
    ) -> None:
        self._store, self._trunk, self._width, self._cut = store, trunk, width, cut
        self._steps, self._seed = [dict(step) for step in steps], seed
        self._errands = Errands()

    def sizes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """No files come, whatever their sizes are."""
        return np.zeros(len(positions), np.int64)

    def key(self, position: int) -> str:
        return self._store.key(position)

    def abandon(self) -> None:
        self._errands.abandon()

    def fetch(self, wanted: Wanted) -> Fetched:
        """Asked for in pieces that end before their deadline."""
        waiting = [np.arange(len(wanted.ids))] if len(wanted.ids) else []
        begun = time.monotonic()
        found: list[tuple[int, Fetched]] = []
        while waiting:
            places = waiting.pop()
            halves = [places[len(places) // 2 :], places[: len(places) // 2]]
            if self._too_many(len(places)):
                waiting += halves
                continue
            try:
                answer = self._ask(wanted.take(places), begun)
            except TooSlow:
                waiting += halves
                continue
            begun = time.monotonic()  # an answer: the limit counts from here
            found.append((int(places[0]), answer))
        parts = [part for _, part in sorted(found, key=lambda entry: entry[0])]
        return parts[0] if len(parts) == 1 else join(parts)

    def _too_many(self, count: int) -> bool:
        """For one request: what it asks for should end before its deadline, and be what stores answer."""
        wish = 1.5 * max(replica.window.request_bytes for replica in self._store.replicas.all)
        most = min(self._store.known.request_bytes, wish)
        return count > LOT or (count > 1 and 2 * self._width * count > most)

    def _ask(self, wanted: Wanted, begun: float) -> Fetched:
        ticket = messages.encode(self._request(wanted))
        seal = payloads.seal_of(ticket)
        errand: Errand[tuple[Parcel, list[Halves | None]]] = Errand(
            self._store.replicas,
            ticket,
            lambda reply: self._accept(reply, wanted.ids, seal),
            size=2 * self._width * len(wanted.ids),
            divisible=len(wanted.ids) > 1,
            begun=begun,
        )
        try:
            parcel, values = self._errands.run(errand)
        except StoreLost as error:
            position = int(wanted.positions[0])
            raise locate(error, self._store.known.name, position, "fetching features") from error
        assert errand.answered_by is not None
        errand.answered_by.connection.count(len(wanted.ids))
        failed = {place: error_of(text) for place, text in parcel.errors.items()}
        return Fetched(values, failed=failed, bytes_moved=parcel.bytes)

    def _request(self, wanted: Wanted) -> FeatureRequest:
        return FeatureRequest(
            dataset=self._store.known.name,
            version=self._store.index.version,
            client=self._store.client,
            ids=np.ascontiguousarray(wanted.ids, "<i8").tobytes(),
            model=self._trunk,
            steps=self._steps,
            seed=self._seed,
            epoch=wanted.epoch,
            cut=self._cut,
            packed=self._packed,
        )

    @property
    def _packed(self) -> bool:
        return not self._cut

    def _accept(
        self, reply: list[tuple[Any, Any]], ids: NDArray[np.int64], seal: int
    ) -> tuple[Parcel, list[Halves | None]]:
        parcel = accept(reply, ids, cut=False, seal=seal)
        values = [
            None if place in parcel.errors else vectors.unpack(payload, self._width, packed=self._packed)
            for place, payload in enumerate(parcel.payloads)
        ]
        return parcel, values
