"""Labels from a new version of a model for every sample that has none, or one of an older version.

Samples are looked at in the order in which they lie. What a label needs is found out from the cheapest
side: that it cannot have changed (`plan.movement`), from kept features by one matrix product, and last from
the image. Rows are written a stretch at a time; before each write the record says what is about to be
written, so that a process that is killed at any moment neither loses a row nor counts one twice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headwater.data.index import Index
from headwater.engine.budget import Gone
from headwater.engine.inference import Extraction, Failed, FeatureBatch
from headwater.errors import DatasetStale
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.store.features import Features
from headwater.store.jobs.draft import Draft
from headwater.store.jobs.record import RELABEL, Failing, Pending
from headwater.store.jobs.runner import Running
from headwater.store.jobs.verdicts import Verdicts
from headwater.store.labels.rows import LabelRows, Source

if TYPE_CHECKING:
    from headwater.store.labels.database import LabelDatabase

COUNTS = ("labelled", "unchanged", "changed", "skipped", "failed", "protected")
"""Samples that had no label of a model before, whose label stayed or changed, whose label is proved to have
stayed, of which no label could be made; and, of all these, those where somebody else's label stays in
force."""

BLOCK = 8192
"""Samples that are looked up together."""
STRETCH = 512
"""Samples with images that are written together."""
_REASON = 300


@dataclass(frozen=True)
class Workplace:
    """Where labels are made: a dataset, its labels, the models, and how images become features there.

    `features` gives what is kept of a version's features, or None where nothing is. `counted` is told what
    became of samples, a stretch at a time.
    """

    dataset: str
    index: Index
    labels: LabelDatabase
    registry: Registry
    features: Callable[[ModelVersion], Features | None]
    extraction: Callable[[ModelVersion], Extraction]
    counted: Callable[[Mapping[str, int]], None] = lambda counts: None


def relabel(place: Workplace, running: Running) -> None:
    """Bring the labels of a dataset up to the job's model, or as far as it goes before the job is over.

    Raises `DatasetStale` where the data is not what it was when the job began, `ModelNotFound` for a
    version that is not here, `LabelRefused` for one that may not label.
    """
    record = running.record
    if record.version != place.index.version:
        raise DatasetStale(
            f"dataset {place.dataset!r} has version {place.index.version[:12]} by now, the job was begun "
            f"with {record.version[:12]}; start another"
        )
    version = place.registry.version(record.model)
    place.labels.announce_line(place.registry.line(version), author=record.by)
    _Relabel(place, running, version).run()


class _Relabel:
    def __init__(self, place: Workplace, running: Running, version: ModelVersion) -> None:
        self._place, self._running, self._version = place, running, version
        self._sources = _sources(running.record.options)
        self._features = place.features(version)
        self._verdicts = Verdicts(place.labels, place.registry, version, dataset=place.dataset)
        self._extraction: Extraction | None = None

    def run(self) -> None:
        self._settle_pending()
        index, running = self._place.index, self._running
        running.save(total=len(index))
        for begin in range(running.record.cursor, len(index), BLOCK):
            if running.over():
                return
            self._look_at(np.arange(begin, min(begin + BLOCK, len(index))))

    def _settle_pending(self) -> None:
        """Whether the write that was under way when the process ended was made: the database knows."""
        pending = self._running.record.pending
        if pending is None:
            return
        written = self._place.labels.written(pending.key, pending.chunk)
        if written is None:
            self._running.save(pending=None)
        else:
            self._note(pending, protected=written.kept)

    def _look_at(self, positions: NDArray[np.int64]) -> None:
        """All samples of a block: those that need nothing, and then the others from the cheapest side."""
        end = int(positions[-1]) + 1
        ids = self._place.index.ids[positions]
        found = self._place.labels.recall(self._place.dataset, self._version.digest, ids, of=self._sources)
        positions = positions[np.isin(ids, found.pending)]
        if not len(positions):
            self._running.show(cursor=end)
            return
        draft = Draft(positions, self._place.index.ids[positions])
        self._verdicts.recall(draft, found.said)
        if self._features is not None:
            # What came after a label was written may have been made of another file than the label was.
            self._verdicts.skip(draft, self._features.norms(draft.ids, draft.times))
            (open_,) = np.nonzero(draft.open)
            places, features = self._features.get(draft.ids[open_])
            self._verdicts.decide(draft, open_[places], features)
        self._complete(draft, end)

    def _complete(self, draft: Draft, end: int) -> None:
        """Images for what is left; each stretch is written when it is whole."""
        (rest,) = np.nonzero(draft.open)
        begun = 0
        with closing(self._extract(draft.positions[rest], draft.ids[rest])) as batches:
            for batch in batches:
                self._take(draft, batch)
                reached = int(np.argmax(draft.open)) if draft.open.any() else len(draft)
                if reached < len(draft) and (reached - begun >= STRETCH or self._running.over()):
                    self._write(draft, slice(begun, reached), cursor=int(draft.positions[reached]))
                    begun = reached
        if not draft.open.any():
            self._write(draft, slice(begun, len(draft)), cursor=end)

    def _extract(
        self, positions: NDArray[np.int64], ids: NDArray[np.int64]
    ) -> Generator[FeatureBatch, None, None]:
        """Features from images, until the job is over."""
        if not len(ids):
            return
        if self._extraction is None:
            self._extraction = self._place.extraction(self._version)
        try:
            for batch in self._extraction.run(positions, ids):
                yield batch
                if self._running.over():
                    return
        except Gone:
            if not self._running.over():
                raise

    def _take(self, draft: Draft, batch: FeatureBatch) -> None:
        if self._features is not None:
            self._features.put(batch.positions, batch.features)
        places = np.searchsorted(draft.positions, batch.positions)
        self._verdicts.decide(draft, places, batch.features)
        for failed in batch.failures:
            draft.fail(int(np.searchsorted(draft.positions, failed.position)), self._explain(failed))

    def _explain(self, failed: Failed) -> Failing:
        key, reason = self._place.index.key(failed.position), str(failed.error)
        return Failing(failed.id, key, reason[:_REASON])

    def _write(self, draft: Draft, part: slice, *, cursor: int) -> None:
        """First what is proved to have stayed, as a revision of its own; then the rest, with the cursor."""
        key, record = f"{RELABEL} {self._running.record.id}", self._running.record
        kept, made = self._verdicts.rows(draft, part)
        if len(kept):
            self._commit(kept, f"{key} kept", {"skipped": len(kept)}, cursor=record.cursor)
        counts = draft.counts(part, self._verdicts.roots)
        self._commit(made, key, counts, cursor=cursor, failures=draft.failures(part))

    def _commit(
        self,
        rows: LabelRows,
        key: str,
        counts: dict[str, int],
        *,
        cursor: int,
        failures: tuple[Failing, ...] = (),
    ) -> None:
        pending = Pending(key, rows.chunk, cursor, counts, failures)
        protected = 0
        if len(rows):
            self._running.save(pending=pending)
            written = self._place.labels.write(
                self._place.dataset,
                rows,
                author=self._running.record.by,
                key=key,
                chunk=pending.chunk,
                over_imports=self._running.record.options.get("over_imports", False),
            )
            protected = written.kept
        self._note(pending, protected=protected)

    def _note(self, pending: Pending, *, protected: int) -> None:
        counts = {**dict.fromkeys(COUNTS, 0), **pending.counts, "protected": protected}
        record = self._running.record.counting(counts, pending.failures)
        self._running.save(record, cursor=max(record.cursor, pending.cursor), pending=None)
        self._place.counted(counts)


def _sources(options: dict[str, bool]) -> tuple[Source, ...]:
    """Whose labels the model looks at again, beside its own."""
    if options.get("opinions"):
        return (Source.MODEL, Source.IMPORT, Source.HUMAN)
    return (Source.MODEL, Source.IMPORT) if options.get("over_imports") else (Source.MODEL,)
