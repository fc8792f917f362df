"""Features that flow in to the tuner: one thread fetches them in order, another trains on those that came."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import numpy as np

from headwater.data.pipeline import Pipeline
from headwater.engine.inference import FeatureBatch
from headwater.store.dataset import Dataset
from headwater.tune.features import FeatureFile, Halves
from headwater.tune.portions import Portions
from headwater.tune.runs import LOT, Places, Stretch

_LOOK_SECONDS = 1.0
_ERRORS_KEPT = 100


class Source(Protocol):
    """Where images become features."""

    @property
    def bytes_moved(self) -> int:
        """Bytes that came over the link, or from disk, so far."""
        ...

    def run(self, positions: Places, ids: Places, *, steps: Pipeline, variant: int) -> Iterator[FeatureBatch]:
        """The features of these samples, `LOT` at a time, of images that went through these steps."""
        ...

    def close(self) -> None:
        """Stop what is under way; whoever waits for features gets an error."""
        ...


class Watch(Protocol):
    """Who wants to know how a fine-tuning gets on; `features` and `store` are told by a thread of their own.

    `store` has what one store has sent in this call, and what it is to send; of replicas each may send all.
    """

    def features(self, done: int, total: int) -> None: ...
    def store(self, store: str, done: int, total: int) -> None: ...
    def epoch(self, run: int, epoch: int, loss: float) -> None: ...
    def run(self, run: int, accuracy: float | None) -> None: ...


class Unwatched:
    """Nobody."""

    def features(self, done: int, total: int) -> None:
        return None

    def store(self, store: str, done: int, total: int) -> None:
        return None

    def epoch(self, run: int, epoch: int, loss: float) -> None:
        return None

    def run(self, run: int, accuracy: float | None) -> None:
        return None


@dataclass(frozen=True)
class Steps:
    """What images go through before the frozen layers: those to train on, and those held out."""

    trained: Pipeline
    held: Pipeline

    def of(self, stretch: Stretch) -> Pipeline:
        return self.held if stretch.held else self.trained


class Inflow:
    """Fetches the lots that are not here yet, from entering the context on; leaving it stops that."""

    def __init__(
        self, source: Source, dataset: Dataset, *, file: FeatureFile, steps: Steps, watch: Watch
    ) -> None:
        self._source, self._dataset, self._file = source, dataset, file
        self._steps, self._watch = steps, watch
        self._error: BaseException | None = None
        self._stopped = False
        self.errors: dict[str, str] = {}
        """Why the first samples that failed did, by key."""
        self._thread = threading.Thread(target=self._work, name="headwater-features", daemon=True)
        self.seconds = 0.0
        """How long it has worked, once it is done."""

    def __enter__(self) -> Inflow:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        self._source.close()
        self._thread.join()

    def wait(self, lots: int) -> None:
        """Until so many lots are here; raises what ended the fetching before that."""
        while self._file.here < lots:
            if self._error is not None:
                raise self._error
            self._file.wait(_LOOK_SECONDS)

    def _work(self) -> None:
        begun = time.perf_counter()
        try:
            portions = Portions(self._dataset.store, self._missing())
            for stretch in self._file.lots.stretches:
                self._fetch(stretch, max(stretch.begin, self._file.here), portions)
        except BaseException as error:
            self._error = error
        finally:
            self.seconds = time.perf_counter() - begun
            self._file.wake()

    def _missing(self) -> Iterator[Places]:
        """Positions of what is not here yet, stretch by stretch."""
        for stretch in self._file.lots.stretches:
            begin = max(stretch.begin, self._file.here)
            if begin < stretch.end:
                yield self._dataset.positions(stretch.rest(begin))

    def _fetch(self, stretch: Stretch, begin: int, portions: Portions) -> None:
        """The lots of a stretch from this one on; they are alike but for their samples."""
        if begin >= stretch.end:
            return
        positions = self._dataset.positions(stretch.rest(begin))
        ids = self._dataset.index.ids[positions]
        batches = self._source.run(positions, ids, steps=self._steps.of(stretch), variant=stretch.variant)
        numbers = range(begin, stretch.end)
        for number, batch in zip(numbers, batches, strict=True):
            if self._stopped:
                return
            start = (number - begin) * LOT
            self._note(batch)
            self._file.put(stretch.lot(number), to_rows(ids[start : start + LOT], batch))
            self._watch.features(self._file.rows_here, self._file.rows)
            for portion in portions:
                self._watch.store(*portion)

    def _note(self, batch: FeatureBatch) -> None:
        for failed in batch.failures[: _ERRORS_KEPT - len(self.errors)]:
            self.errors[self._dataset.index.key(failed.position)] = str(failed.error)


def to_rows(ids: Places, batch: FeatureBatch) -> Halves:
    """A row for each id, NaN where the sample failed."""
    rows = np.full((len(ids), batch.features.shape[1]), np.nan, np.float16)
    order = np.argsort(ids)
    rows[order[np.searchsorted(ids, batch.ids, sorter=order)]] = batch.features
    return rows
