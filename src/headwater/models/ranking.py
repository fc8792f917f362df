"""The classes that a model holds most likely, from its logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def best(logits: Floats, scores: Floats, count: int) -> tuple[NDArray[np.int32], Floats]:
    """For each row the `count` best classes, or all if there are fewer, and their shares of the softmax.

    `scores` are the shares of the first, which `decide` gives with its label; of equal ones the first is the
    one that is listed first.
    """
    places = np.argsort(-logits, axis=1, kind="stable")[:, :count].astype(np.int32)
    found = np.take_along_axis(logits, places, axis=1)
    shares: Floats = np.exp(found - found[:, :1]) * scores[:, None]
    return places, shares
