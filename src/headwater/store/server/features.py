"""What a store answers to requests for features: those that it keeps, and the others made from the images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.engine.budget import Turnstile
from headwater.errors import WrongUse
from headwater.store.server.decoding import Asker
from headwater.store.server.desk import Desk, complain, parse_ids
from headwater.store.server.prefix import modest
from headwater.store.server.studios import Studio
from headwater.store.wire import payloads, vectors
from headwater.store.wire.messages import FeatureRequest
from headwater.store.wire.payloads import Parcel

MOST_SAMPLES = 256
"""Of one request: it should end well before a deadline."""
VECTORS_SHARE = 0.5
"""Of a store's memory, and on top of it: what requests may hold while their vectors are made and sent."""
_HALF = 2  # bytes of a number
_COPIES = 4  # of a vector of half precision: as the layers give it, twice as large, rounded, and packed
_ANY_NUMBER = 1 << 16
_PATIENCE = 60.0  # seconds; the caller's own deadline is usually shorter


class FeatureDesk:
    """Answers requests for features. `open_studio` raises where the store holds no models."""

    def __init__(self, desk: Desk, open_studio: Callable[[FeatureRequest], Studio]) -> None:
        self._desk, self._open = desk, open_studio
        # A line of its own: who waits here holds nothing that those inside wait for.
        self._room = Turnstile(_ANY_NUMBER, max(1, int(VECTORS_SHARE * desk.budget.memory)))

    def read(
        self, request: FeatureRequest, caller: str, gone: Callable[[], bool], seal: int = 0
    ) -> Iterator[Any]:
        """One batch, as `Desk.read` makes it, whose payloads are vectors of float16, packed if asked for.

        Raises `ModelNotFound` for a trunk or a cut that is not here, `WrongUse` for steps that may not run
        here, and for more bytes than are answered at once.
        """
        self._desk.find(request.dataset, request.version)
        ids = parse_ids(request.ids, MOST_SAMPLES)
        _check(request.steps)
        studio, who = self._open(request), (caller, request.client)
        memory = min(_COPIES * self._weigh(studio, len(ids)), int(VECTORS_SHARE * self._desk.budget.memory))
        with self._room.enter(*who, memory=memory, patience=_PATIENCE, gone=gone):
            made = self._make(studio, ids, Asker(*who, "read", gone))
            parcel = made.parcel(packed=request.packed)
            del made
            self._desk.ledger.add("headwater_bytes_sent_total", parcel.bytes, "features")
            batch = payloads.pack(parcel, seal)
            del parcel
            yield from self._desk.send(lambda: (batch, b""), who, size=batch.nbytes, gone=gone)

    def _weigh(self, studio: Studio, count: int) -> int:
        """Bytes of the answer; raises `WrongUse` for more than the store answers at once."""
        total, most = _HALF * studio.width * count, self._desk.budget.request_bytes
        if total > most:
            raise WrongUse(
                f"{total:,} bytes at once, {_HALF * studio.width:,} for a sample; this store answers "
                f"{most:,}: ask for fewer samples, or cut elsewhere"
            )
        return total

    def _make(self, studio: Studio, ids: NDArray[np.int64], asker: Asker) -> _Made:
        made = _Made(ids, studio)
        kept = studio.kept()
        if kept is not None:
            places, rows = kept.get(ids)
            made.put(ids[places], rows)
        self._count("kept", len(ids) - len(made.missing))
        if len(made.missing):
            positions = studio.store.index.position_of(made.missing)
            epoch = studio.variation.epoch
            for batch in studio.extraction(asker).run(positions, made.missing, epoch=epoch):
                if kept is not None:
                    kept.put(batch.positions, batch.features)
                made.put(batch.ids, batch.features)
                made.errors |= {failed.id: failed.error for failed in batch.failures}
                self._count("made", len(batch.ids))
                self._count("failed", len(batch.failures))
        return made

    def _count(self, outcome: str, samples: int) -> None:
        self._desk.ledger.add("headwater_features_total", samples, outcome)


class _Made:
    """The features of a request, by sample, as they come."""

    def __init__(self, ids: NDArray[np.int64], studio: Studio) -> None:
        self._ids, self._studio = ids, studio
        self._rows: dict[int, bytes] = {}
        self.errors: dict[int, Exception] = {}

    @property
    def missing(self) -> NDArray[np.int64]:
        return np.array([id for id in self._ids.tolist() if id not in self._rows], np.int64)

    def put(self, ids: NDArray[np.int64], rows: NDArray[np.float16]) -> None:
        for id, row in zip(ids.tolist(), rows.astype("<f2", copy=False), strict=True):
            self._rows[id] = row.tobytes()

    def parcel(self, *, packed: bool) -> Parcel:
        ids = self._ids.tolist()
        rows = {id: vectors.pack(row) for id, row in self._rows.items()} if packed else self._rows
        errors = {
            place: complain(self.errors[id], self._studio.store)
            for place, id in enumerate(ids)
            if id in self.errors
        }
        return Parcel(self._ids, [rows.get(id) for id in ids], errors)


def _check(steps: Sequence[Mapping[str, Any]]) -> None:
    """Steps of a client's own; raises `WrongUse` for what does not run per sample, or not for anybody."""
    if not all(isinstance(step.get("name"), str) for step in steps):
        raise WrongUse("a step without a name; each step is a name and parameters")
    pipeline = Pipeline.from_spec(steps, catalogue())
    if len(pipeline.samplewise) < len(pipeline):
        raise WrongUse("steps of a batch come with the model; send those per sample only")
    if modest(steps) < len(steps):
        raise WrongUse("more steps, or larger images, than a store makes for anybody; ask for less")
