"""What a user may give as `offload`, and what it means."""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from dataclasses import dataclass

from headwater.data.codecs.excerpts import known_codecs
from headwater.data.pipeline import Pipeline
from headwater.errors import WrongUse
from headwater.measure.logbook import Logbook
from headwater.plan.offload import POLICIES, Offload
from headwater.plan.offload.ways import list_ways, smallest_cut

PLANNED = ("throughput", "efficiency", "hull")
"""Policies that need measurements; the others are one way for all samples."""


@dataclass(frozen=True)
class Auto:
    """Offloading that is planned while a run goes on; `offload="auto"` is `Auto()`.

    `store_seconds` caps the store's CPU for a sample, on average. `codecs` are those that may be used, all
    that both sides have if it is None. `logbook` is what an earlier run has found; without one, that of the
    last run with the same data, steps and libraries is taken from the cache, unless `fresh`.
    """

    policy: str = "hull"
    store_seconds: float = math.inf
    codecs: Collection[str] | None = None
    logbook: Logbook | None = None
    fresh: bool = False

    def __post_init__(self) -> None:
        if self.policy not in PLANNED:
            raise WrongUse(f"policy {self.policy!r} is not planned; choose from {', '.join(PLANNED)}")
        if not self.store_seconds > 0:
            raise WrongUse(f"store_seconds is {self.store_seconds}; it must be above 0")


Given = Offload | Auto | str | os.PathLike[str] | None


def resolve(offload: Given, pipeline: Pipeline) -> Offload | Auto:
    """Raises `WrongUse` for what is neither a policy, a way, nor a logbook that can be read."""
    if isinstance(offload, Offload | Auto):
        return offload
    if offload is None or offload == "none":
        return Offload(0)
    if offload == "all":
        return Offload(pipeline.longest_prefix)
    if offload == "auto":
        return Auto()
    if offload in PLANNED:
        return Auto(str(offload))
    if offload == "fixed":
        return Offload(smallest_cut(pipeline))
    if isinstance(offload, os.PathLike) or os.path.exists(offload):
        logbook = Logbook.load(offload)
        return Auto(logbook.policy, logbook=logbook)
    known = ", ".join(map(repr, ["auto", *POLICIES]))
    raise WrongUse(f"offload is {offload!r}; give {known}, an hw.Offload, an hw.Auto, or a logbook's path")


def ways_of(pipeline: Pipeline, auto: Auto) -> tuple[Offload, ...]:
    """What a policy chooses from: published ones know no codecs; for ours, decoder and crop are one step."""
    wished = (
        known_codecs() if auto.codecs is None else [name for name in known_codecs() if name in auto.codecs]
    )
    ways = list_ways(pipeline, wished)
    if auto.policy != "hull":
        return tuple(way for way in ways if way.codec == "none")
    fused = len(pipeline) > 1 and pipeline.steps[1].crops and Offload(2) in ways
    return tuple(way for way in ways if not (fused and way.cut == 1))
