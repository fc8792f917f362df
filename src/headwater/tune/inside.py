"""Cuts between frozen layers: which are worth a measurement, and what each asks of stores and tuner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.measure.timing import least_seconds
from headwater.models.crossing import Crossing, Crossings
from headwater.models.cutting import divide
from headwater.models.model import Model
from headwater.models.parts import tensors_of
from headwater.models.pixels import Affine, put_before
from headwater.models.runtime import Session
from headwater.plan.finetune import Cut

MOST = 12
"""How many cuts inside are measured at most."""


@dataclass(frozen=True)
class Pace:
    """Seconds for an image: of layers on one core here, of the steps before them, of both at the stores."""

    layers: float
    steps: float
    store: float

    def cut(self, crossing: Crossing, share: float) -> Cut:
        """With this share of the layers' time before the cut, and the steps at the stores."""
        before = (self.steps + share * self.layers) / (self.steps + self.layers)
        return Cut(
            crossing.name, self.store * before, crossing.bytes, (1 - share) * self.layers, estimated=True
        )


def worthwhile(crossings: Crossings, *, most_bytes: float, count: int = MOST) -> list[Crossing]:
    """Of each of `count` equal parts of the layers' work the cut that ships least; of equals, the last.

    None that ships more than `most_bytes`, and none behind which no work is left: features ship less.
    """
    best: dict[int, Crossing] = {}
    for crossing in crossings:
        if crossing.bytes > most_bytes or crossing.work >= crossings.work:
            continue
        part = count * crossing.work // crossings.work
        if part not in best or crossing.bytes <= best[part].bytes:
            best[part] = crossing
    return list(best.values())


def shares(model: Model, cuts: Sequence[Crossing], images: NDArray[np.uint8]) -> dict[str, float]:
    """What part of the layers' time is spent before each cut, by its name.

    The layers run from cut to cut, on these images and one core. A cut where a value of them does not fit
    into half precision is left out.
    """
    values: NDArray[Any] = images
    seconds, fits = [], []
    for session in _sessions(model, cuts):
        given, values = values, session.run(values)  # the first run warms up
        seconds.append(least_seconds(partial(session.run, given)))
        fits.append(_fits(values))
    before = np.cumsum(seconds) / sum(seconds)
    return {cut.name: float(share) for cut, share, fit in zip(cuts, before, fits, strict=False) if fit}


def _fits(values: NDArray[np.float32]) -> bool:
    return bool(np.abs(values).max() <= np.finfo(np.float16).max)  # a NaN does not


def _sessions(model: Model, cuts: Sequence[Crossing]) -> list[Session]:
    """From the pixels to the first cut, from each to the next, and from the last to the features."""
    graphs, rest = [], model.trunk
    for cut in cuts:
        near, rest = divide(rest, cut)
        graphs.append(near)
    graphs.append(rest)
    graphs[0] = put_before(graphs[0], Affine.of(model.steps))
    return [Session(graph, tensors_of(graph, model), threads=1) for graph in graphs]
