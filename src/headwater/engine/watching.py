"""A lot with a clock beside it: what each of its samples takes."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headwater.data.image import Header
from headwater.data.steps.base import Image, Row
from headwater.engine.chain import Lot
from headwater.engine.fetching import Costs


class Watched:
    """Passes on to another lot, and times its samples, which one thread makes one after the other.

    Where files are decoded here, what their headers say is written into `costs`.
    """

    def __init__(self, lot: Lot, costs: Costs) -> None:
        self._lot, self._costs = lot, costs
        self.ids, self.epoch = lot.ids, lot.epoch
        self._seconds = np.zeros(len(lot.ids), np.float32)
        self._begun = self._now = time.thread_time()

    def note(self, place: int, header: Header, size: tuple[int, int], rows: Sequence[Row]) -> None:
        self._costs.sizes[place] = size
        self._costs.able[place] &= bool(header.subsampling)
        self._now = time.thread_time()

    def emit(self, place: int, image: Image) -> None:
        self._lot.emit(place, image)
        self._stop(place)

    def fail(self, place: int, stage: str, error: Exception) -> None:
        self._lot.fail(place, stage, error)
        self._stop(place)

    def seconds(self) -> NDArray[np.float32]:
        """CPU seconds of each sample; what was spent on all together is divided evenly."""
        together = time.thread_time() - self._begun - float(self._seconds.sum())
        return self._seconds + np.float32(max(together, 0.0) / max(len(self._seconds), 1))

    def _stop(self, place: int) -> None:
        begun, self._now = self._now, time.thread_time()
        self._seconds[place] = self._now - begun
