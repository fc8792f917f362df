"""What a model says of images that were sent to a store: decoded in workers, then layers and head."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.data.pipeline import Pipeline
from headwater.engine.budget import Busy, Gone
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew
from headwater.engine.fetching import Fetched, Wanted
from headwater.engine.inference import Extraction
from headwater.models.runtime import Head, make_head
from headwater.models.version import ModelVersion
from headwater.store.features import OWN
from headwater.store.prediction import Sayings
from headwater.store.server.decoding import Asker, all_steps, sort_out
from headwater.store.server.desk import Desk
from headwater.store.server.state import State
from headwater.store.server.studios import Studios

_CALLER, _PRIORITY = "predictions", "predict"
_PATIENCE = 1.0
_HEADS = 8


@dataclass(frozen=True, eq=False)
class Judged:
    """What is said of some images: a row of `said` for each of `places`; errors of the others, by place."""

    said: Sayings
    places: NDArray[np.int64]
    errors: dict[int, Exception]


class Judges:
    """The models of a store, for images that are in memory. Safe to use from many threads."""

    def __init__(self, state: State, desk: Desk, studios: Studios) -> None:
        self._state, self._desk, self._studios = state, desk, studios
        self._heads: OrderedDict[str, Head] = OrderedDict()
        self._lock = threading.Lock()

    def judge(self, images: Sequence[bytes], model: str, *, gone: Callable[[], bool]) -> Judged:
        """By the version in force of a model, or the only one there is; raises `ModelNotFound`, `Gone`.

        Features are rounded to half precision, as everywhere: so the labels are those of a relabel.
        """
        version = self._state.registry.choose(model)
        asker = Asker(_CALLER, "", _PRIORITY, gone)
        layers = self._studios.engines.borrow(version, asker)
        pipeline = OWN.pipeline(version)
        extraction = Extraction(
            lambda: Sent(self._desk, images, pipeline=pipeline, asker=asker),
            Chain(Pipeline(()), limits=self._desk.limits),
            layers,
            Crew(workers=0, readers=0),
        )
        ids = np.array([_id_of(image) for image in images], np.int64)
        batches = list(extraction.run(np.arange(len(images)), ids))
        features = np.concatenate([batch.features for batch in batches]).astype(np.float32)
        return Judged(
            Sayings.of(version, self._head(version).run(features)),
            np.concatenate([batch.positions for batch in batches]),
            {failed.position: failed.error for batch in batches for failed in batch.failures},
        )

    def _head(self, version: ModelVersion) -> Head:
        with self._lock:
            head = self._heads.get(version.digest)
            if head is None:
                head = make_head(self._state.registry.get(version.digest))
                self._heads[version.digest] = head
                if len(self._heads) > _HEADS:
                    self._heads.popitem(last=False)
            self._heads.move_to_end(version.digest)
            return head


class Sent:
    """A `Reader` of files that are in memory: it gives images after all steps, or why there is none."""

    def __init__(self, desk: Desk, files: Sequence[bytes], *, pipeline: Pipeline, asker: Asker) -> None:
        self._desk, self._files, self._pipeline, self._asker = desk, files, pipeline, asker
        self._over = False

    def sizes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([len(self._files[position]) for position in positions.tolist()], np.int64)

    def key(self, position: int) -> str:
        return f"image {position}"

    def abandon(self) -> None:
        self._over = True

    def fetch(self, wanted: Wanted) -> Fetched:
        """Raises `Gone` if nobody waits any more, and `WorkersFailed`."""
        files = [self._files[position] for position in wanted.positions.tolist()]
        work = all_steps(self._pipeline, wanted.ids, limits=self._desk.limits)
        size = sum(map(len, files))
        while not self._gone():
            try:
                turn = self._desk.turnstile.enter(
                    self._asker.caller,
                    self._asker.client,
                    priority=self._asker.priority,
                    memory=size,
                    patience=_PATIENCE,
                    gone=self._gone,
                )
            except Busy:
                continue
            with turn:
                turn.leave_slot()  # workers and cores have lines of their own
                done = self._desk.prefix.insist(work, files, turn, gone=self._gone)
            made, lost = sort_out(done, range(len(files)), work.ids)
            values = [made.get(place) for place in range(len(files))]
            return Fetched(values, failed=lost, bytes_moved=size)
        raise Gone("nobody waits for these images any more")

    def _gone(self) -> bool:
        return self._over or self._asker.gone()


def _id_of(image: bytes) -> int:
    """By its bytes: one that crashes decoders is known when it comes again."""
    return int.from_bytes(hashlib.blake2b(image, digest_size=8).digest(), "big") >> 1
