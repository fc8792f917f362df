"""What a codec is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Shape = tuple[int, int, int]


def _load_nothing() -> None:
    """For a codec whose libraries are loaded with the package."""


@dataclass(frozen=True)
class Codec:
    """A pair of functions that undo each other, and one that imports what they need."""

    encode: Callable[[Pixels], memoryview]
    decode: Callable[[bytes | memoryview, Shape], Pixels]
    load: Callable[[], object] = _load_nothing
