"""What selectors by vectors share: classes apart, sizes as weights, and what has no vector stays."""

from __future__ import annotations

import numpy as np

from headwater.select.choosing import everything
from headwater.select.maximisers import Maximiser
from headwater.select.objectives import Objective
from headwater.select.parts import Parts, Picks, Vectors
from headwater.select.samples import Marks, Samples
from headwater.select.selection import Choice

_HUGE = 1e36


def choose_coreset(
    samples: Samples,
    objective: Objective,
    maximiser: Maximiser,
    *,
    share: float,
    how: str,
    active: Marks | None = None,
    weighted: bool = True,
) -> Choice:
    """A share of each class, or of its `active` samples; `how` is a word for the reason.

    A sample weighs as many as it stands for. One without a vector cannot be compared: it stays, and stands
    for itself. Classes are chosen from in stretches, each in its turn. Without any vectors everything stays,
    and the reason says so.
    """
    if samples.vectors is None:
        return Choice(everything(samples), "everything: there are no vectors to compare samples by")
    told = _have_vectors(samples.vectors)
    looked_at = told if active is None else told & active
    rest = np.flatnonzero(~told if active is None else ~told & active)
    parts = Parts.of_classes(samples, np.flatnonzero(looked_at), share=share)
    found = []
    for some in parts.stretches():
        with samples.turn(len(some.order)):
            found.append(maximiser.maximise(objective, samples.vectors, some))
    picks = Picks.joined(found)
    places = np.concatenate((picks.places, rest))
    order = np.argsort(places)
    sizes = np.concatenate((picks.sizes, np.ones(len(rest), np.int64)))
    reason = f"{share:.0%} of each class {how}" + (f", {len(rest):,} without a vector" if len(rest) else "")
    return Choice(places[order], reason, sizes[order].astype(np.float64) if weighted else None)


def _have_vectors(vectors: Vectors) -> Marks:
    """Which rows are numbers throughout, and no larger than can be squared."""
    with np.errstate(invalid="ignore", over="ignore"):
        found: Marks = np.einsum("nd,nd->n", vectors, vectors, dtype=np.float32, casting="same_kind") < _HUGE
    return found
