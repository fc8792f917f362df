"""Where a model may be cut between stores and tuner, and what a cut asks of either for one image."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headwater.errors import WrongUse

IMAGES = "images"
"""The cut before the first layer: files cross, and all layers run at the tuner."""
FEATURES = "features"
"""The cut after the last frozen layer: stores run all of them."""


@dataclass(frozen=True)
class Cut:
    """Frozen layers before the cut run at the stores, those after it at the tuner, once for each image.

    `store_seconds` and `tuner_seconds` are CPU for one image, with what reading and decoding take; `bytes`
    cross the link for it. What is `estimated` was not measured as a whole, and is taken only where it is
    clearly quicker.
    """

    name: str
    store_seconds: float
    bytes: float
    tuner_seconds: float = 0.0
    estimated: bool = False

    def __post_init__(self) -> None:
        for name in ("store_seconds", "bytes", "tuner_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise WrongUse(f"{name} of cut {self.name!r} is {value}; it must be a number of at least 0")
