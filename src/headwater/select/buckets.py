"""Samples that matter little wait, and come back when training stands still.

IOWA's bucket sampling. Kept: some regular epochs on everything; then every epoch the least important samples
in process go to wait, the more of them the better training does; when training accuracy no longer rises, a
random half of those that wait comes back (or never, `recall="none"`). Nothing is corrected for. Changed: the
scores, see `importance`; a floor for all and for each class; the last eighth of the epochs is whole, as
InfoBatch has it; a sample of unknown probability never goes to wait. The paper names no constants: these are
ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.select.choosing import by_class, check_explore, check_part, everything, mark_lowest
from headwater.select.importance import STALLED, find_importance
from headwater.select.samples import Ints, Marks, Samples
from headwater.select.selection import Choice
from headwater.select.shift import describe_shift

IN_PROCESS, WAITING = range(2)
_GAIN = 0.001  # of accuracy: what counts as a rise
_RETURNED = 0.5  # of those that wait
_TIE = 2.0**-20  # too small to change places with anything but an equal
_RECALLS = ("random", "none")


@dataclass(frozen=True)
class Buckets:
    """Moves up to `rate` of the samples in process out every epoch, and leaves at least `floor` of a class.

    After `patience` epochs without a gain a half of those that wait comes back. `published` has IOWA's own
    surprise; without `whole_end` the last epochs are like the others.
    """

    rate: float = 0.1
    floor: float = 0.3
    patience: int = 3
    recall: Literal["random", "none"] = "random"
    published: bool = False
    whole_end: bool = True
    explore: float | None = None
    name = "buckets"
    needs = ("probability",)

    def __post_init__(self) -> None:
        check_part("rate", self.rate)
        check_part("floor", self.floor)
        check_explore(self.explore)
        if self.patience < 1:
            raise WrongUse(f"patience is {self.patience}; it must be at least 1 epoch")
        if self.recall not in _RECALLS:
            raise WrongUse(f"recall is {self.recall!r}; choose from {', '.join(_RECALLS)}")

    def choose(self, samples: Samples) -> Choice:
        accuracy, waiting = training_accuracy(samples), samples.bucket == WAITING
        state = _follow(samples.state, accuracy, bool(waiting.any()))
        if samples.epoch < _regular(samples):
            everybody, said = np.zeros(len(samples), np.uint8), "everything: a regular epoch"
            return Choice(everything(samples), said, buckets=everybody, state=state)
        if samples.near_end and self.whole_end:
            said = "everything: the last eighth of the epochs is whole"
            return Choice(everything(samples), said, buckets=waiting.view(np.uint8), state=state)
        if state.get("stale", 0) >= self.patience and self.recall == "random":
            back = _call_back(samples, waiting)
            waiting = waiting & ~back
            said, state = f"re-sampling: {np.count_nonzero(back):,} come back", {**state, "stale": 0}
        else:
            out = self._send_out(samples, waiting, accuracy)
            waiting = waiting | out
            said = f"sampling out: {np.count_nonzero(out):,} go to wait"
        return self._choose(samples, waiting, said, state)

    def _choose(self, samples: Samples, waiting: Marks, said: str, state: Mapping[str, Any]) -> Choice:
        reason = f"{said}, {np.count_nonzero(waiting):,} of {len(samples):,} wait"
        if "best" in state:
            reason += f", best training accuracy {state['best']:.1%}"
        if samples.stalled > STALLED:
            reason += f", training waits for data {samples.stalled:.0%} of its time: what loads fast stays"
        reason += describe_shift(samples, ~waiting)
        return Choice(np.flatnonzero(~waiting), reason, buckets=waiting.view(np.uint8), state=state)

    def _send_out(self, samples: Samples, waiting: Marks, accuracy: float) -> Marks:
        """The least important of those in process, as many as training does well."""
        out = np.zeros(len(samples), np.bool_)
        inside = np.flatnonzero(~waiting)
        count = 0 if math.isnan(accuracy) else int(self.rate * accuracy * len(inside))
        if not count:
            return out
        keys = find_importance(samples, inside, published=self.published) + _TIE * samples.draw()[inside]
        free = self._free(samples, inside, keys)
        keys[~free] = np.nan
        out[inside] = mark_lowest(keys, min(count, int(np.count_nonzero(free))))
        return out

    def _free(self, samples: Samples, inside: Ints, keys: NDArray[np.float64]) -> Marks:
        """Those that may go: with a score, and the lowest of their class above its floor."""
        free = np.zeros(len(inside), np.bool_)
        labels = samples.labels[inside]
        classes, counts = np.unique(samples.labels, return_counts=True)
        order, begins = by_class(labels)
        sizes = counts[np.searchsorted(classes, labels[order[begins[:-1]]])]
        floors = np.maximum(1, np.ceil(sizes * self.floor - 1e-9)).astype(np.int64)
        for (begin, end), floor in zip(pairwise(begins), floors, strict=True):
            places = order[begin:end]
            told = int(np.count_nonzero(~np.isnan(keys[places])))
            free[places] = mark_lowest(keys[places], min(told, int(end - begin - floor)))
        return free


def training_accuracy(samples: Samples) -> float:
    """The share of positive margins in the last epoch that told any; without any, the mean probability.

    NaN where nothing was. What an earlier epoch told of a sample does not count, even if a loss came since.
    """
    stamps = samples.judged if samples.judged.max(initial=-1) >= 0 else samples.last
    recent = (stamps == stamps.max(initial=-1)) & (stamps >= 0)
    for column in (samples.margin, samples.probability):
        values = column[recent & np.isfinite(column)]
        if len(values):
            return float(np.mean(values > 0 if column is samples.margin else values, dtype=np.float64))
    return math.nan


def _regular(samples: Samples) -> int:
    """Epochs on everything: one in twenty, at least one."""
    return max(1, (samples.epochs or 0) // 20)


def _follow(state: Mapping[str, Any], accuracy: float, waiting: bool) -> dict[str, Any]:
    """The best accuracy so far, and for how many epochs it has not risen while some waited."""
    if math.isnan(accuracy):
        return dict(state)
    best, stale = state.get("best", -math.inf), int(state.get("stale", 0))
    if accuracy > best + _GAIN:
        return {"best": accuracy, "stale": 0}
    return {"best": best, "stale": stale + 1 if waiting else 0}


def _call_back(samples: Samples, waiting: Marks) -> Marks:
    """A random half of those that wait."""
    back, places = np.zeros(len(samples), np.bool_), np.flatnonzero(waiting)
    back[places] = mark_lowest(samples.draw()[places], math.ceil(_RETURNED * len(places)))
    return back
