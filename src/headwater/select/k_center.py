"""Samples that leave none of their class far from all of them.

The core-sets of Sener and Savarese (ICLR 2018), by the farthest-first greedy of Gonzalez (1985). Kept: the
greedy. Changed: a class at a time; weights, because what is far from the others is seldom; large classes in
pieces, since time grows with the square of their size.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.select.choosing import check_explore, check_share
from headwater.select.coreset import choose_coreset
from headwater.select.maximisers import Naive, Partitioned
from headwater.select.objectives import KCenter
from headwater.select.samples import Samples
from headwater.select.selection import Choice


@dataclass(frozen=True)
class FarthestFirst:
    """A `share` of each class, in pieces of at most `chunk` samples.

    `weighted` by how many samples each stands for; without it as published.
    """

    share: float = 0.3
    chunk: int = 8192
    weighted: bool = True
    explore: float | None = None
    name = "k_center"
    needs = ("vectors",)

    def __post_init__(self) -> None:
        check_share(self.share)
        check_explore(self.explore)
        Partitioned(self.chunk)  # raises if there can be no such chunk

    def choose(self, samples: Samples) -> Choice:
        return choose_coreset(
            samples,
            KCenter(),
            Partitioned(self.chunk, Naive()),
            share=self.share,
            how="with the farthest first",
            weighted=self.weighted,
        )
