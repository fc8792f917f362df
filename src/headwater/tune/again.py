"""A head that was trained with a journal, again without some samples: what `forget` needs of fine-tuning.

Batches are those of the fine-tuning, and so are scaling and classes. Features come from where they came
from, or from a copy. Those of the samples that go are needed, too, so this comes before they are deleted;
afterwards every step is computed again, which needs those of the others only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.errors import JournalRefused, ModelError, ModelNotFound
from headwater.models.model import Model
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.plan.finetune.cut import FEATURES, IMAGES
from headwater.store.dataset import Dataset
from headwater.train.replay.batches import NO_SLOTS, OverlappedRuns, Slots, restore
from headwater.train.replay.features import Features
from headwater.train.replay.journal import Journal
from headwater.train.replay.linear import KIND as LINEAR
from headwater.train.replay.linear import LinearHead
from headwater.train.replay.naming import as_ids
from headwater.train.replay.objective import Vector
from headwater.train.replay.objectives import restore as restore_objective
from headwater.train.replay.outcome import Retrained
from headwater.train.replay.reading import JournalFile
from headwater.train.replay.retraining import LIMIT, TOLERANCE, retrain
from headwater.tune.head import Floats, Scaling, fold
from headwater.tune.inflow import Source, to_rows
from headwater.tune.journals import journal_path, keep_journal, source_of
from headwater.tune.runs import LOT
from headwater.tune.sources import Sources

Halves = NDArray[np.float16]

_ALL_STORES = 1 << 30


@dataclass(frozen=True, eq=False)
class NewHead:
    """What came of a request: `retrained` says how, `tensors` are for features as they are."""

    retrained: Retrained
    tensors: Mapping[str, Floats]


class HeadAgain:
    """The head of a version that was fine-tuned with a journal; `dataset` still has its samples, but for such
    as are to go.

    Raises `ModelNotFound` for a version without a journal, `JournalRefused` for a journal of something else.
    """

    def __init__(self, dataset: Dataset, model: str, *, registry: Registry) -> None:
        self.registry, self.dataset, self.version = registry, dataset, registry.version(model)
        self.path = journal_path(registry, self.version.digest)
        if not self.path.exists():
            raise ModelNotFound(
                f"version {self.version.digest[:12]} has no journal; fine-tune with one, or train again "
                "without the samples"
            )
        self._file = JournalFile(self.path)
        self._check_is_of_version()

    @property
    def ids(self) -> NDArray[np.int64]:
        """Of all samples that the head was to be trained on; who is held out is not among them."""
        ids = self._file.header.slots
        return np.unique(ids[ids >= 0])

    def without(
        self,
        remove: Iterable[int],
        *,
        features: Features | None = None,
        method: str = "replay",
        tolerance: float = TOLERANCE,
        limit: float = LIMIT,
    ) -> NewHead:
        """The head without these samples, as `hw.retrain` makes it; its journal waits to be kept.

        `features` are a copy of those that it was trained on; without one they are made again. Where the
        dataset has one of these samples no more, the method is `exact`, whatever is asked for.
        """
        gone, lost = as_ids(remove, "remove"), NO_SLOTS
        if features is None:
            lost = gone[~self.dataset.index.has(gone)]
            features = self.features(lost)
        done = retrain(
            Journal(self.path, features),
            gone,
            method="exact" if len(lost) else method,
            tolerance=tolerance,
            limit=limit,
            keep=self._next_journal,
        )
        if len(lost) and method != "exact":
            done = replace(done, reason=f"a {method} needs {len(lost):,} samples that are gone already")
        weight, bias = self._fold(done.weights)
        return NewHead(done, {"weight": weight, "bias": bias})

    def keep(self, new: NewHead, *, name: str | None = None, made: Mapping[str, Any]) -> ModelVersion:
        """The version with the new head on the same layers, and its journal; it is not put in force.

        `made` is added to what the old version says of how it was made.
        """
        old = self.registry.get(self.version.digest)
        trunk = {key: value for key, value in old.tensors.items() if key.startswith("trunk/")}
        heads = {f"head/{key}": value for key, value in new.tensors.items()}
        model = Model(old.trunk, old.head, {**trunk, **heads}, old.classes, old.steps)
        version = self.registry.put(
            model,
            name=name or self.version.name,
            parent=self.version.parent,
            made={**self.version.made, **made},
        )
        keep_journal(self._next_journal, self.registry, version.digest)
        self._next_journal.unlink(missing_ok=True)
        return version

    def features(self, lost: NDArray[np.int64] = NO_SLOTS) -> Features:
        """Those of all samples in the journal, made again by the layers that made them; all are in memory.

        Those of the samples `lost`, by their ids, are not made, and no numbers.
        Raises `JournalRefused` where one that was trained on cannot be made any more, `WrongUse` where the
        dataset has it no more.
        """
        *others, last = self._ways()
        for way in others:
            with suppress(ModelError):
                return self._gather(way, lost)
        return self._gather(last, lost)

    def _gather(self, way: Callable[[], Source], without: NDArray[np.int64]) -> Features:
        slots, there = self._file.header.slots, self._file.header.slots >= 0
        values: Halves = np.full((len(slots), self._layers.features), np.nan, np.float16)
        wanted = there & ~np.isin(slots, without)
        with closing(way()) as source:
            for variant, all_ in self._variants():
                some = all_[wanted[all_]]
                values[some] = self._fetch(slots[some], source, variant)
        lost = np.setdiff1d(np.flatnonzero(wanted & np.isnan(values[:, 0])), self._file.missing)
        if len(lost):
            raise JournalRefused(
                f"features of {len(lost):,} samples that the head was trained on cannot be made any more, "
                f"such as those of id {slots[lost[0]]}; bring a copy of them, or train again"
            )
        assert self._file.targets is not None
        targets, source_ = self._file.targets[there], source_of(self._layers, self._about)
        return Features(slots[there], values[there], targets, source=source_)

    def _ways(self) -> list[Callable[[], Source]]:
        """As they were made, and else in this process."""
        cut = self._about["cut"]
        sources = Sources(
            self.dataset, self._layers, self.registry.get(self._layers.digest), self._about["seed"]
        )
        if not self.dataset.store.remote or cut == IMAGES:
            return [sources.here]
        if cut == FEATURES:
            return [partial(sources.at_stores, _ALL_STORES), sources.here]
        return [partial(sources.behind, cut, _ALL_STORES), sources.here]

    def _variants(self) -> Iterator[tuple[int, Slots]]:
        """Slots of each variant that have a sample with features."""
        batches = restore(self._file.header.batches)
        assert isinstance(batches, OverlappedRuns)
        wanted = self._file.header.slots >= 0
        wanted[self._file.missing] = False
        for variant in range(batches.variants):
            slots = batches.slots_of(variant)
            yield variant, slots[wanted[slots]]

    def _fetch(self, ids: NDArray[np.int64], source: Source, variant: int) -> Halves:
        """A row for each id, NaN where it could not be made."""
        positions = self.dataset.index.position_of(ids)
        order = np.argsort(positions)  # as they lie
        steps = Pipeline.from_spec(self._about["steps"], catalogue())
        batches = source.run(positions[order], ids[order], steps=steps, variant=variant)
        rows = np.full((len(ids), self._layers.features), np.nan, np.float16)
        for start, batch in zip(range(0, len(ids), LOT), batches, strict=True):
            some = order[start : start + LOT]
            rows[some] = to_rows(ids[some], batch)
        return rows

    @property
    def _about(self) -> Mapping[str, Any]:
        return self._file.header.about

    @cached_property
    def _layers(self) -> ModelVersion:
        """The version whose layers made the features; once that is sealed or gone, this one has the same."""
        found = self.registry.find(self._about["layers"])
        return self.version if found is None or found.digest in self.registry.sealed() else found

    @property
    def _next_journal(self) -> Path:
        return self.path.with_suffix(".next")

    def _fold(self, weights: Vector) -> tuple[Floats, Floats]:
        """For features as they are."""
        head = self._head
        assert head.shifting is not None
        tensors = head.name_weights(weights)
        scaling = Scaling(head.shifting.mean, head.shifting.scale)
        return fold(tensors["weight"], tensors["bias"], scaling)

    @cached_property
    def _head(self) -> LinearHead:
        spec = self._file.header.objective
        if spec.get("kind") != LINEAR or "scale" not in spec:
            raise JournalRefused(
                f"the head of {self.version.digest[:12]} is a module of your own; replay it with hw.retrain"
            )
        found = restore_objective(spec, None)
        assert isinstance(found, LinearHead)
        return found

    def _check_is_of_version(self) -> None:
        """The weights that the journal ends with are those of the version."""
        self._file.seal  # noqa: B018 - it refuses what is cut short
        tensors = self.registry.get(self.version.digest).tensors
        folded = self._fold(self._file.mark_before(len(self._file))[1])
        for name, mine in zip(("weight", "bias"), folded, strict=True):
            if not np.array_equal(mine, tensors[f"head/{name}"]):
                raise JournalRefused(
                    f"{self.path} is not the journal of version {self.version.digest[:12]}: its run ended "
                    "with another head; delete it, and train again"
                )
