"""Where a model may be cut between stores and tuner, and what a cut asks of either for one image."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from headwater.errors import WrongUse

IMAGES = "images"
"""The cut before the first layer: files cross, and all layers run at the tuner."""
FEATURES = "features"
"""The cut after the last frozen layer: stores run all of them."""


class Point(Protocol):
    """A cut point of a model, as `headwater.models.split` lists them."""

    @property
    def at(self) -> str | None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def frozen_seconds(self) -> float: ...
    @property
    def head_seconds(self) -> float: ...


@dataclass(frozen=True)
class Cut:
    """Frozen layers before the cut run at the stores, those after it at the tuner, once for each image.

    `store_seconds` and `tuner_seconds` are CPU for one image, with what reading and decoding take; `bytes`
    cross the link for it.
    """

    name: str
    store_seconds: float
    bytes: float
    tuner_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("store_seconds", "bytes", "tuner_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise WrongUse(f"{name} of cut {self.name!r} is {value}; it must be a number of at least 0")


def cuts_of(points: Iterable[Point], *, image_bytes: float, decode_seconds: float = 0.0) -> tuple[Cut, ...]:
    """The cut before the first layer, and one for each point, in order.

    Layers between a point and the last one stay frozen and run at the tuner; what is behind the last point is
    trained, wherever the cut is. `decode_seconds` are spent where the first layer runs.
    """
    listed = list(points)
    if not listed:
        raise WrongUse("the model has no cut points, so there is nothing to choose from")
    least = min(point.head_seconds for point in listed)
    whole = listed[0].frozen_seconds + listed[0].head_seconds - least
    inner = [
        Cut(
            point.at or FEATURES,
            decode_seconds + point.frozen_seconds,
            point.bytes,
            point.head_seconds - least,
        )
        for point in listed
    ]
    return (Cut(IMAGES, 0.0, image_bytes, decode_seconds + whole), *inner)
