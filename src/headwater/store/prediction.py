"""What a version of a model says of images, from logits to words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.models.ranking import best
from headwater.models.runtime import Classified, Floats, decide
from headwater.models.version import ModelVersion
from headwater.store.wire.messages import Guess, Prediction

MOST_TOP = 100
"""Classes that one may ask for."""


@dataclass(frozen=True, eq=False)
class Sayings:
    """A row for each image: label, score and margin, and the best classes with their scores."""

    version: ModelVersion
    found: Classified
    classes: NDArray[np.int32]
    scores: Floats

    @classmethod
    def of(cls, version: ModelVersion, logits: Floats) -> Sayings:
        """Raises `ModelError` for logits that are not finite."""
        found = decide(logits)
        return cls(version, found, *best(logits, found.scores, MOST_TOP))

    def prediction(self, row: int, *, top: int = 1, id: int | None = None, key: str = "") -> Prediction:
        """One of them in words; `id` and `key` are where the image is kept, if it is."""
        names, found = self.version.classes, self.found
        pairs = zip(self.classes[row, :top].tolist(), self.scores[row, :top].tolist(), strict=True)
        margin = float(found.margins[row])
        return Prediction(
            label=names[int(found.labels[row])],
            score=float(found.scores[row]),
            margin=margin if np.isfinite(margin) else None,
            model=self.version.name,
            version=self.version.digest,
            top=[Guess(names[place], score) for place, score in pairs],
            id=id,
            key=key,
        )
