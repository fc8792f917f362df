"""The medoids of the last layer's gradients, class by class.

CRAIG (Mirzasoleiman, Bilmes, Leskovec, ICML 2020). Kept: the samples of a class to which all others of it
are nearest in sum, each with as much weight as samples are nearest to it; greedy, over the whole class.
Changed: a class whose pairs do not fit in memory is solved by asking a few random samples in each step.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.select.choosing import check_explore, check_share
from headwater.select.coreset import choose_coreset
from headwater.select.maximisers import BySize
from headwater.select.objectives import FacilityLocation
from headwater.select.samples import Samples
from headwater.select.selection import Choice


@dataclass(frozen=True)
class Craig:
    """A `share` of each class as medoids; `weighted` by how many samples each stands for."""

    share: float = 0.3
    weighted: bool = True
    explore: float | None = None
    name = "craig"
    needs = ("vectors",)

    def __post_init__(self) -> None:
        check_share(self.share)
        check_explore(self.explore)

    def choose(self, samples: Samples) -> Choice:
        return choose_coreset(
            samples,
            FacilityLocation(),
            BySize(),
            share=self.share,
            how="as medoids",
            weighted=self.weighted,
        )
