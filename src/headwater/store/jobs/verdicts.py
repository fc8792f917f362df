"""What a version of a model says of samples: what it would say again, and what it says of features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headwater.errors import ModelError
from headwater.models.model import Model
from headwater.models.registry import Registry
from headwater.models.runtime import decide, make_head
from headwater.models.version import ModelVersion
from headwater.plan.movement import LinearHead, Movement, stays
from headwater.store.jobs.draft import KEPT, MADE, NONE, Draft
from headwater.store.labels.rows import LabelRows, Source

if TYPE_CHECKING:
    from headwater.store.labels.database import LabelDatabase


class Verdicts:
    """A version's head, its classes as a dataset numbers them, and the heads of the versions before it."""

    def __init__(
        self, labels: LabelDatabase, registry: Registry, version: ModelVersion, *, dataset: str
    ) -> None:
        self._labels, self._registry, self._version, self._dataset = labels, registry, version, dataset
        self._model = registry.get(version.digest)
        self._head = make_head(self._model)
        announced = labels.models()
        self._digests = {known.number: known.digest for known in announced}
        self._number = next(known.number for known in announced if known.digest == version.digest)
        self._classes = labels.adopt(dataset, version.classes)
        self._look_up_classes()
        self._movements: dict[int, Movement | None] = {}

    def recall(self, draft: Draft, said: LabelRows) -> None:
        """Put down what models said before of samples of the draft."""
        self._look_up_classes()
        order = np.argsort(draft.ids)
        places = order[np.searchsorted(draft.ids[order], said.samples)]
        draft.before[places], draft.models[places] = said.labels, said.models
        draft.times[places] = said.times
        draft.scores[places], draft.margins[places] = said.scores, said.margins

    def _look_up_classes(self) -> None:
        """Again for each block: somebody may merge classes while a job runs."""
        self.roots = self._labels.classes(self._dataset).roots[self._classes]
        """What each of the model's classes means in the dataset, after all merges."""
        self._place_of = _inverse(self.roots)

    def skip(self, draft: Draft, norms: NDArray[np.float32]) -> None:
        """Keep the labels that the change of the head cannot have changed.

        `norms` are those of the features that the labels were made of, NaN where that is not known. Scores
        and margins become lower bounds that hold for this version.
        """
        for number in np.unique(draft.models[draft.open]).tolist():
            movement = self._movement(number)
            if movement is None:
                continue
            (places,) = np.nonzero(draft.open & (draft.models == number) & np.isfinite(norms))
            labels = self._places(draft.before[places])
            places, labels = places[labels != NONE], labels[labels != NONE]
            most = movement.most(labels, norms[places])
            sure = stays(draft.margins[places], most)
            places, labels, most = places[sure], labels[sure], most[sure]
            scores, margins = movement.carry(draft.scores[places], draft.margins[places], most)
            draft.settle(places, KEPT, labels=labels, scores=scores, margins=margins)

    def decide(self, draft: Draft, places: NDArray[np.integer], features: NDArray[np.float16]) -> None:
        """Label samples by their features; raises `ModelError` for a head that gives no numbers."""
        if not len(places):
            return
        found = decide(self._head.run(features.astype(np.float32)))
        draft.settle(places, MADE, labels=found.labels, scores=found.scores, margins=found.margins)

    def rows(self, draft: Draft, part: slice) -> tuple[LabelRows, LabelRows]:
        """What is to be written of a part: labels that are kept, and labels that were made."""
        kept, made = (self._rows(draft, part, state) for state in (KEPT, MADE))
        return kept, made

    def _rows(self, draft: Draft, part: slice, state: int) -> LabelRows:
        chosen = np.flatnonzero(draft.state[part] == state) + part.indices(len(draft))[0]
        return LabelRows.of(
            draft.ids[chosen],
            self._classes[draft.chosen[chosen]],
            source=Source.MODEL,
            scores=draft.scores[chosen],
            margins=draft.margins[chosen],
            model=self._number,
        )

    def _places(self, classes: NDArray[np.int32]) -> NDArray[np.int32]:
        """The model's own number of each class, `NONE` for what is none of its, or is several."""
        within = (classes >= 0) & (classes < len(self._place_of))
        found = np.full(len(classes), NONE, np.int32)
        found[within] = self._place_of[classes[within]]
        return found

    def _movement(self, number: int) -> Movement | None:
        """From the head of an announced version to this one's; None where there is no rule for it."""
        if number not in self._movements:
            self._movements[number] = self._compare(self._digests.get(number, ""))
        return self._movements[number]

    def _compare(self, digest: str) -> Movement | None:
        try:
            before = self._registry.version(digest) if digest else None
            if before is None or before.trunk_digest != self._version.trunk_digest:
                return None
            old, new = _linear(self._registry.get(digest)), _linear(self._model)
        except ModelError:  # it was collected, or is damaged
            return None
        same = before.classes == self._version.classes
        return Movement(old, new) if same and old is not None and new is not None else None


def _linear(model: Model) -> LinearHead | None:
    if model.head is not None:
        return None
    return LinearHead(model.tensors["head/weight"], model.tensors["head/bias"])


def _inverse(roots: NDArray[np.int32]) -> NDArray[np.int32]:
    """The model's class for each class of the dataset; `NONE` where none or several of them mean it."""
    found = np.full(int(roots.max(initial=-1)) + 1, NONE, np.int32)
    found[roots] = np.arange(len(roots), dtype=np.int32)
    classes, counts = np.unique(roots, return_counts=True)
    found[classes[counts > 1]] = NONE
    return found
