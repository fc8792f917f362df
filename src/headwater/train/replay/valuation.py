"""What a sample was worth: how the loss on other samples changes when the run is followed without it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.train.replay.features import Features
from headwater.train.replay.journal import Journal
from headwater.train.replay.naming import as_ids
from headwater.train.replay.objective import Parts, Vector
from headwater.train.replay.retraining import retrain
from headwater.train.replay.visits import Ids


@dataclass(frozen=True, eq=False)
class SampleValues:
    """Of each sample: by how much the mean loss rises without it. What is below 0 harms.

    `errors` are estimated, as a share of how far the weights move without the sample.
    """

    ids: Ids
    values: NDArray[np.float64]
    errors: NDArray[np.float64]

    def worst(self, count: int) -> Ids:
        """Samples that harm most, the worst first: where wrong labels are to be looked for."""
        return self.ids[np.argsort(self.values, kind="stable")[:count]]


def value_samples(
    journal: Journal, ids: Iterable[int], *, judge: Features, tolerance: float = 0.05
) -> SampleValues:
    """Leave-one-out values: the run is followed without each of these samples, one at a time.

    `judge` are rows that the run was not trained on. A value is a difference of two losses that are nearly
    the same: it is computed from how the weights move, to second order, and not from both losses. Raises
    what `hw.retrain` raises, and `WrongUse` for a judge with rows that the run was trained on.
    """
    wanted = as_ids(ids, "ids")
    journal.objective.check(judge)
    _check_apart(journal, judge)
    rise = _Rise(journal, judge)
    done = [retrain(journal, remove=[each], tolerance=tolerance) for each in wanted.tolist()]
    return SampleValues(
        wanted,
        np.array([rise.after(each.moved) for each in done]),
        np.array([each.error or 0.0 for each in done]),
    )


def _check_apart(journal: Journal, judge: Features) -> None:
    """A sample judges itself well: without it, the loss on it rises."""
    both = np.intersect1d(judge.ids, journal.ids)
    if not len(both):
        return
    known, judging = journal.data.find(both), judge.find(both)
    values, own = journal.data.values[known], judge.values[judging]
    same = both[(values == own).reshape(len(both), -1).all(1)]
    if len(same):
        raise WrongUse(
            f"{len(same):,} rows of the judge were trained on, such as that of id {same[0]}; bring rows that "
            "the run has not seen"
        )


class _Rise:
    """How the mean loss over some rows rises from the weights of a run on."""

    def __init__(self, journal: Journal, judge: Features) -> None:
        self._journal, self._judge = journal, judge
        self._slope = journal.objective.gradient(journal.weights, self._parts())

    def after(self, move: Vector) -> float:
        curve = self._journal.objective.curve(self._journal.weights, move, self._parts())
        return (float(np.vdot(self._slope, move)) + 0.5 * float(np.vdot(curve, move))) / len(self._judge)

    def _parts(self) -> Parts:
        return self._judge.parts(slice(0, len(self._judge)))
