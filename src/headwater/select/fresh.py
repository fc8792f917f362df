"""Another random share in every epoch.

Repeated Sampling of Random Subsets, RS2 (ICLR 2024), without replacement from one epoch to the next. Kept:
the data is shuffled, and epochs take one part after the other until all was seen; then it is shuffled again.
Changed: each class is divided on its own; where a share does not divide the data, the last part of a round
ends with the last sample, so that some come twice in a round and none is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from headwater.select.choosing import check_part, check_share, lowest
from headwater.select.samples import Samples
from headwater.select.selection import Choice


@dataclass(frozen=True)
class Fresh:
    """A random `share` of each class; all samples are seen in every 1 / `share` epochs."""

    share: float = 0.5
    explore: float = 0.0
    name = "fresh"
    needs = ()

    def __post_init__(self) -> None:
        check_share(self.share)
        check_part("explore", self.explore)

    def choose(self, samples: Samples) -> Choice:
        turns = math.ceil(1 / self.share - 1e-9)
        shuffle, turn = divmod(samples.epoch, turns)
        draws = replace(samples, epoch=shuffle).draw()
        places = lowest(draws, samples.labels, share=self.share, turn=turn)
        return Choice(places, f"part {turn + 1} of {turns} of each class, in round {shuffle + 1}")
