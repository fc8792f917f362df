"""The medoids of random pieces of each class, of what is not learned yet.

NeSSA (HotStorage 2023), with what CREST (ICML 2023) put right. Kept: medoids of last-layer gradients, class
by class; partitioning; subset biasing, which drops samples whose loss stayed low; a smaller share from then
on. Changed: weights are applied, which the published code computes and then forgets; pieces cover all samples
in each epoch; losses are of logits, not of what was soft-maxed already, so that thresholds do not compare
with the published ones; a sample that was never seen is not taken for learned; a part of each class stays
whatever its losses; classes give in proportion to their size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from headwater.errors import WrongUse
from headwater.select.choosing import check_explore, check_part, check_share, lowest
from headwater.select.coreset import choose_coreset
from headwater.select.maximisers import MAXIMISERS, Maximiser, Partitioned
from headwater.select.objectives import OBJECTIVES, Objective
from headwater.select.samples import Marks, Samples
from headwater.select.selection import Choice

_LEARNED = 1


@dataclass(frozen=True)
class Medoids:
    """A `share` of each class as medoids of pieces of `chunk` samples, or of the whole class if that is None.

    With a `threshold` samples of which no recent loss was above it are dropped, `every` so many epochs, but
    for the `floor` of each class with the highest losses. Once any are, the share is `shrunk`, if that is
    given. What is dropped is in bucket 1; where losses are those that training reports, only to `explore`
    tells more of it. Without `weighted` it is as the published code, which mines hard samples.
    With another `objective` than `facility_location` it is no longer medoids that are taken; `maximiser` is
    who takes them of a piece. Both by name, or as objects, which stay in this process: stores take names.
    """

    share: float = 0.3
    chunk: int | None = 64
    threshold: float | None = None
    every: int = 20
    floor: float = 0.2
    shrunk: float | None = None
    weighted: bool = True
    explore: float | None = None
    objective: Literal["facility_location", "k_center", "graph_cut"] | Objective = "facility_location"
    maximiser: Literal["by_size", "naive", "lazy", "stochastic"] | Maximiser = "by_size"
    name = "medoids"

    def __post_init__(self) -> None:
        check_share(self.share)
        check_share(self.share if self.shrunk is None else self.shrunk)
        check_part("floor", self.floor)
        check_explore(self.explore)
        _find("objective", self.objective, OBJECTIVES)
        _find("maximiser", self.maximiser, MAXIMISERS)
        if self.chunk is not None:
            Partitioned(self.chunk)  # raises if there can be no such chunk
        if self.every < 1:
            raise WrongUse(f"every is {self.every}; it must be at least 1 epoch")
        if self.shrunk is not None and self.threshold is None:
            raise WrongUse("the share shrinks once samples are dropped, which takes a threshold")

    @property
    def needs(self) -> tuple[str, ...]:
        return ("vectors",) if self.threshold is None else ("vectors", "peak")

    def choose(self, samples: Samples) -> Choice:
        learned, state = self._learned(samples)
        dropped = int(np.count_nonzero(learned))
        choice = choose_coreset(
            samples,
            _find("objective", self.objective, OBJECTIVES),
            self._maximiser,
            share=self.shrunk if self.shrunk is not None and dropped else self.share,
            how=self._how + (f" of pieces of {self.chunk}" if self.chunk else ""),
            active=~learned,
            weighted=self.weighted,
        )
        if self.threshold is None:
            return choice
        reason = choice.reason + (f", without {dropped:,} that are learned" if dropped else "")
        return replace(choice, reason=reason, buckets=learned.view(np.uint8), state=state)

    @property
    def _how(self) -> str:
        name = self.objective if isinstance(self.objective, str) else type(self.objective).__name__
        return "as medoids" if name == "facility_location" else f"by {name}"

    @property
    def _maximiser(self) -> Maximiser:
        inner = _find("maximiser", self.maximiser, MAXIMISERS)
        return inner if self.chunk is None else Partitioned(self.chunk, inner)

    def _learned(self, samples: Samples) -> tuple[Marks, Mapping[str, Any]]:
        """What is dropped, anew when it is time and else as before; and the epoch in which that was."""
        if self.threshold is not None and samples.epoch and samples.epoch % self.every == 0:
            learned: Marks = samples.peak <= self.threshold
            learned[lowest(-samples.peak, samples.labels, share=self.floor)] = False
            return learned, {"dropped": samples.epoch}
        if self.threshold is None or "dropped" not in samples.state:
            return np.zeros(len(samples), np.bool_), {}
        return samples.bucket == _LEARNED, samples.state


_Kind = TypeVar("_Kind")


def _find(what: str, given: str | _Kind, known: Mapping[str, Callable[..., _Kind]]) -> _Kind:
    """By name, or as it is; raises `WrongUse` for a name that there is not."""
    if not isinstance(given, str):
        return given
    if given not in known:
        raise WrongUse(f"{what} is {given!r}; choose from {', '.join(known)}")
    return known[given]()
