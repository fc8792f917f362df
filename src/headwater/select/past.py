"""What an epoch's selection was like, in a few numbers: for plots of a whole run."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.select.samples import Samples
from headwater.select.selection import Selection

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_LOOKED_AT = 1 << 17  # samples are enough for quantiles


class Past(msgspec.Struct, frozen=True):
    """`losses` are the quantiles of the losses that were known then, `buckets` how many were in each.

    What a bucket means is up to the `selector`; it is empty in tables from before it was noted.
    """

    epoch: int
    samples: int
    selected: int
    effective: float
    stalled: float
    bytes: float
    losses: list[float] = []
    buckets: list[int] = []
    selector: str = ""

    @classmethod
    def of(cls, samples: Samples, selection: Selection) -> Past:
        buckets = [] if selection.buckets is None else np.bincount(selection.buckets, minlength=2).tolist()
        return cls(
            epoch=selection.epoch,
            samples=len(samples),
            selected=len(selection),
            effective=selection.effective,
            stalled=samples.stalled,
            bytes=float(np.nansum(samples.bytes[selection.places], dtype=np.float64)),
            losses=_quantiles(samples.loss),
            buckets=buckets,
            selector=selection.selector,
        )


def _quantiles(values: NDArray[np.floating[Any]]) -> list[float]:
    some = values[:: max(1, len(values) // _LOOKED_AT)]
    some = some[np.isfinite(some)]
    found: list[float] = np.quantile(some, QUANTILES).tolist() if len(some) else []
    return found
