"""What a trainer has at hand: its cache, near-duplicates, and who stands in for whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headwater.engine.cache import SampleCache
from headwater.errors import WrongUse
from headwater.loader.duplicates import Duplicates
from headwater.loader.exchange import gather
from headwater.select.holding import worth_holding
from headwater.select.redundancy import stand_ins
from headwater.select.samples import Samples
from headwater.select.selection import Selection
from headwater.store.dataset import Dataset

Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pantry:
    """`own` gives the places of a selection that this rank will visit."""

    dataset: Dataset
    cache: SampleCache | None
    duplicates: Duplicates | None
    own: Callable[[Selection], Places]

    def __post_init__(self) -> None:
        if self.duplicates is None:
            return
        if len(self.duplicates.groups) != len(self.dataset):
            raise WrongUse(
                f"there are groups for {len(self.duplicates.groups)} samples, the dataset has "
                f"{len(self.dataset)}; find the duplicates of this very dataset"
            )
        if self.duplicates.mode == "stand_in" and self.cache is None:
            raise WrongUse("what stands in for others is what a cache holds; pass cache= too")

    @property
    def habits(self) -> dict[str, str | bool] | None:
        """How near-duplicates are dealt with, for a dry run; None: not at all."""
        if self.duplicates is None:
            return None
        return {"mode": self.duplicates.mode, "cached": self.cache is not None}

    def redundancy(self, stalled: float) -> str:
        """What a selection does with near-duplicates, where training waits for data a share of its time."""
        return "keep" if self.duplicates is None or self._serves(stalled) else "drop"

    def provide(self, samples: Samples, selection: Selection, *, read: NDArray[np.integer[Any]]) -> Selection:
        """Tell the cache what is worth holding, and find who stands in for whom; all ranks must call it.

        `read` is the epoch in which each sample was last truly read.
        """
        serves = self._serves(samples.stalled)
        if self.cache is not None:
            worth = np.zeros(len(self.dataset.index), np.float32)
            worth[self.dataset.positions()] = worth_holding(samples, selection, stand_ins=serves)
            self.cache.value(worth)
        if not serves or self.cache is None or self.duplicates is None or not (read >= 0).any():
            return selection
        cached = self.cache.contains(self.dataset.positions())
        found = stand_ins(
            samples, selection.places, cached=cached, read=read, patience=self.duplicates.patience
        )
        found = self._agree(selection, found)
        served = int(np.count_nonzero(found >= 0))
        return replace(selection, stand_ins=found, reason=f"{selection.reason}; {served:,} by a stand-in")

    def _serves(self, stalled: float) -> bool:
        return self.duplicates is not None and self.duplicates.serves(stalled, cached=self.cache is not None)

    def _agree(self, selection: Selection, found: Places) -> Places:
        """A rank finds stand-ins in its own cache, so for what it visits itself; all learn of all of them."""
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return found
        mine = np.searchsorted(selection.places, np.sort(self.own(selection)))
        merged = np.full(len(found), -1, np.int64)
        for payload in gather(np.stack((mine, found[mine])).astype(np.int64).tobytes()):
            where, who = np.frombuffer(payload, np.int64).reshape(2, -1)
            merged[where] = who
        return merged
