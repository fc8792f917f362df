"""What training has shown about each sample: columns, one row per sample of the index."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from headwater.data.index import Index
from headwater.errors import WrongUse


class Signals:
    """The last loss of each sample, when it was seen, and how often. No memory before the first record."""

    def __init__(self, index: Index) -> None:
        self._index = index

    @cached_property
    def loss(self) -> NDArray[np.float32]:
        """NaN for samples that were never reported."""
        return np.full(len(self._index), np.nan, np.float32)

    @cached_property
    def epoch(self) -> NDArray[np.int32]:
        """The epoch of the last report, -1 for none."""
        return np.full(len(self._index), -1, np.int32)

    @cached_property
    def seen(self) -> NDArray[np.int32]:
        """How often a sample was reported."""
        return np.zeros(len(self._index), np.int32)

    def record(self, ids: NDArray[np.int64], loss: NDArray[np.float32], *, epoch: int) -> None:
        """Note the losses of one batch."""
        if loss.shape != ids.shape:
            raise WrongUse(
                f"loss has shape {loss.shape} for {len(ids)} samples; compute it with reduction='none'"
            )
        positions = self._index.position_of(ids)
        self.loss[positions] = loss
        self.epoch[positions] = epoch
        np.add.at(self.seen, positions, 1)
