"""In which order a loader's epochs visit samples: as they lie or shuffled, of all or some, a rank's share."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from headwater.data.randomness import derive_key
from headwater.engine.order import Order
from headwater.engine.permutation import BlockShuffled, Chosen, Identity, Permutation, Shuffled
from headwater.select.selection import Selection
from headwater.store.dataset import Dataset

Places = NDArray[np.int64]


class Ordering:
    """The orders of one loader, a function of epoch and places. `shuffle` is a value of `SHUFFLES`."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        shuffle: str,
        seed: int,
        batch_size: int,
        drop_last: bool,
        ranks: Callable[[], tuple[int, int]],
    ) -> None:
        self._dataset, self._shuffle, self._seed = dataset, shuffle, seed
        self._batch_size, self._drop_last, self._ranks = batch_size, drop_last, ranks

    @property
    def name(self) -> str:
        """How it is shuffled, for who compares states."""
        return self._shuffle if self._blocks is None else f"blocks of {self._window}"

    def of(self, epoch: int, places: Places | None, start: int) -> Order:
        """This rank's order of an epoch on some places, or on all; raises for sizes that cannot be."""
        return self._share(self._permute(epoch, places), start)

    def steps(self, count: int) -> int:
        """Of an epoch on so many samples."""
        return self._share(Identity(count), 0).steps

    def own(self, selection: Selection) -> Places:
        """What this rank visits of an epoch."""
        order = self.of(selection.epoch, selection.places, 0)
        taken = [order.take(step) for step in range(order.steps)]
        return np.concatenate(taken) if taken else selection.places[:0]

    def warn_of_rereading(self) -> None:
        """Where a shuffle would read the blocks of the files again and again."""
        cached, blocks = self._dataset.store.cached_bytes, self._dataset.blocks()
        if self._shuffle != "full" or cached is None or blocks is None:
            return
        total = len(blocks) * self._block_bytes
        if total > cached:
            warnings.warn(
                f"of {total / 1e9:.1f} GB read in blocks, {cached / 1e9:.1f} GB are held: "
                "a full shuffle reads each block many times; shuffle='blocks' reads it once",
                stacklevel=4,
            )

    def _share(self, permutation: Permutation, start: int) -> Order:
        rank, world_size = self._ranks()
        return Order(
            permutation,
            self._batch_size,
            start=start,
            drop_last=self._drop_last,
            rank=rank,
            world_size=world_size,
        )

    def _permute(self, epoch: int, places: Places | None) -> Permutation:
        blocks = self._blocks
        if places is None:
            return self._shuffled(epoch, len(self._dataset), blocks)
        if blocks is not None:
            blocks = np.unique(np.searchsorted(places, blocks))
            blocks = blocks[blocks < len(places)]
        return Chosen(self._shuffled(epoch, len(places), blocks), places)

    def _shuffled(self, epoch: int, count: int, blocks: Places | None) -> Permutation:
        key = derive_key(self._seed, epoch)
        if self._shuffle == "no":
            return Identity(count)
        return Shuffled(count, key) if blocks is None else BlockShuffled(count, key, blocks, self._window)

    @cached_property
    def _blocks(self) -> Places | None:
        return self._dataset.blocks() if self._shuffle == "blocks" else None

    @cached_property
    def _window(self) -> int:
        """Blocks that are shuffled together: two windows fit into the cache, for the change between them."""
        return max(1, int((self._dataset.store.cached_bytes or 0) / 2 / self._block_bytes))

    @property
    def _block_bytes(self) -> float:
        blocks = self._dataset.store.blocks()
        return float(self._dataset.index.sizes.sum()) / (1 if blocks is None else len(blocks))
