"""Random pieces of every part, each solved by itself.

The partitioning of NeSSA (HotStorage 2023) and CREST (ICML 2023). Memory is that of a few pieces, and time is
linear. Changed: pieces are disjoint and cover every sample in each epoch, where the published code draws
each from all samples, so that it looks at about two thirds of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headwater.errors import WrongUse
from headwater.select.maximisers.maximiser import Maximiser
from headwater.select.maximisers.naive import Naive
from headwater.select.objectives import Objective
from headwater.select.parts import Parts, Picks, Vectors


@dataclass(frozen=True)
class Partitioned:
    """Pieces of at most `chunk` samples, or as large as it takes to give one."""

    chunk: int = 64
    inner: Maximiser = field(default_factory=Naive)

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise WrongUse(f"a chunk of {self.chunk} samples holds none; it must be at least 1")

    def maximise(self, objective: Objective, vectors: Vectors, parts: Parts) -> Picks:
        return self.inner.maximise(objective, vectors, parts.split(self.chunk))
