"""From channel scales to the channels that are kept: one threshold for all layers, and no layer too thin."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.errors import ModelError, WrongUse
from headwater.plan.prune.channels import Channels

Scales = NDArray[np.floating]
Keep = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Mask:
    """What is kept. `undecided` is the share of channels of which no scale says whether they are."""

    keep: Keep
    undecided: float


def count_removed(channels: Channels, ratio: float) -> int:
    """How many channels go at a ratio; raises `WrongUse` for one that leaves all, or none."""
    share = float(ratio) if isinstance(ratio, int | float) and math.isfinite(ratio) else 0.0
    count = int(share * len(channels) + 1e-9)
    if not 0 < count < len(channels):
        raise WrongUse(
            f"ratio {ratio!r} removes {count} of {len(channels):,} channels; give one between 0 and 1 that "
            "removes some and leaves some"
        )
    return count


def mask_at(channels: Channels, scales: Scales, ratio: float) -> Mask:
    """The channels with the largest scales of all layers together.

    Exactly the share `ratio` goes, rounded down. Equal scales go in equal shares of their layers. Raises
    `ModelError` for scales that are no numbers.
    """
    if not np.isfinite(scales).all():
        raise ModelError("channel scales are no numbers any more: training ran away; lower the learning rate")
    count = count_removed(channels, ratio)
    order = np.lexsort((channels.even, scales))
    keep = np.ones(len(channels), np.bool_)
    keep[order[:count]] = False
    return Mask(keep, _undecided(scales, keep, float(scales[order[count - 1]])))


def _undecided(scales: Scales, keep: Keep, threshold: float) -> float:
    """Of equal scales of which some go and some stay, the fewer. Scales of 0 are all as good as gone."""
    if threshold == 0:
        return 0.0
    tied = scales == threshold
    return float(min(np.count_nonzero(tied & keep), np.count_nonzero(tied & ~keep)) / len(scales))


def widen(channels: Channels, scales: Scales, keep: Keep, *, multiple: int = 1) -> Keep:
    """The same channels, and the best of the others, so that each layer has a multiple of so many, or all.

    A layer that would lose all its channels keeps its best ones.
    """
    wide = keep.copy()
    for _, part in channels.parts():
        size, kept = part.stop - part.start, int(keep[part].sum())
        wanted = min(size, -(-max(kept, 1) // multiple) * multiple)
        # the kept ones first, then by scale; of equal ones the first
        order = np.lexsort((-scales[part], ~keep[part]))
        wide[part.start + order[:wanted]] = True
    return wide
