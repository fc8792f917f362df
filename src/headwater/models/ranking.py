"""The classes that a model holds most likely, from its logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def best(logits: Floats, count: int) -> tuple[NDArray[np.int32], Floats]:
    """For each row the `count` best classes, or all if there are fewer, and their shares of the softmax.

    The first is the label that `decide` gives; of equal ones the one that is listed first.
    """
    places = np.argsort(-logits, axis=1, kind="stable")[:, :count].astype(np.int32)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return places, np.take_along_axis(shares, places, axis=1).astype(np.float32)
