"""Every sample alike, or the same random share of them in every epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headwater.select.choosing import check_part, check_share, lowest
from headwater.select.samples import Samples
from headwater.select.selection import Choice


@dataclass(frozen=True)
class Uniform:
    """The first baseline: a fixed random `share` of each class."""

    share: float = 1.0
    explore: float = 0.0
    name = "uniform"
    needs = ()

    def __post_init__(self) -> None:
        check_share(self.share)
        check_part("explore", self.explore)

    def choose(self, samples: Samples) -> Choice:
        always = replace(samples, epoch=0)
        places = lowest(always.draw(), samples.labels, share=self.share)
        return Choice(places, f"a fixed {self.share:.0%} of each class")
