"""What it is worth to a trainer to hold a sample: for the admission to its cache.

As in iCache (HPCA 2023), what training will ask for and learns from is held before other things; what stands
for its near-duplicates spares the reads of all of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headwater.select.ranks import by_rank
from headwater.select.redundancy import representatives
from headwater.select.samples import Floats, Samples
from headwater.select.selection import Selection

_LEFT_OUT = np.float32(0.3)
"""What a sample that is not visited now is worth: it may be in a later epoch."""
_MIDDLE = np.float32(0.5)


def worth_holding(samples: Samples, selection: Selection, *, stand_ins: bool = False) -> Floats:
    """A number for each sample.

    With `stand_ins` one member of a group is worth as much as all of it, the same one in every epoch, and the
    others are worth little.
    """
    worth = np.full(len(samples), _LEFT_OUT)
    worth[selection.places] = 1
    worth *= _MIDDLE + _rank(samples)
    if stand_ins:
        kept, stood = representatives(replace(samples, epoch=0))
        others = samples.group >= 0
        others[kept] = False
        worth[kept] *= stood
        worth[others] *= _LEFT_OUT
    return worth


def _rank(samples: Samples) -> Floats:
    """The share of samples with a lower loss; a half where nothing is known."""
    ranks = np.full(len(samples), _MIDDLE)
    (told,) = np.nonzero(np.isfinite(samples.smoothed))
    if len(told):
        ranks[told] = by_rank(samples.smoothed[told], "below")
    return ranks
