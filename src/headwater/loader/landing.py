"""Where decoded images land: one tensor per batch, written by many threads, slot by slot.

If the batch stage begins with dtype and normalisation and the batch stays on the CPU, values are
looked up in a table of 256 floats per channel while they are written. The table is made by the very
steps, so the bits are theirs, and the batch is passed over once instead of four times.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headwater.data.pipeline import Pipeline
from headwater.data.steps.base import Image
from headwater.data.steps.dtype import normalise_table
from headwater.errors import WrongUse

_STAGED_BELOW = 1 << 15  # smaller images are looked up a lot at a time, larger ones while in cache


@dataclass(frozen=True)
class Writing:
    """How values are written, and how many steps of the batch stage that covers."""

    table: NDArray[np.float32] | None = None
    covered: int = 0

    @classmethod
    def of(cls, batchwise: Pipeline, *, on_cpu: bool) -> Writing:
        found = normalise_table(batchwise.steps) if on_cpu else None
        return cls(*found) if found else cls()


class Landing:
    """The tensor of one batch. Memory is allocated when the first image shows its shape."""

    def __init__(self, count: int, writing: Writing, *, pinned: bool = False) -> None:
        self._count = count
        self._writing = writing
        self._pinned = pinned
        self._lock = threading.Lock()
        self._shape: tuple[int, ...] = ()
        self._dtype: np.dtype[np.generic] | None = None

    def put(self, slot: int, image: Image) -> None:
        if image.shape != self._shape or image.dtype != self._dtype:
            self._settle_shape(image)
        if self._staged is not None:
            self._staged[slot] = image
        elif self._table is None:
            self._array[slot] = image.transpose(2, 0, 1)
        else:
            _look_up(self._table, image[None], self._array[slot : slot + 1])

    def settle(self, begin: int, end: int) -> None:
        """Slots begin..end-1 have been put, or never will be."""
        if self._shape and self._staged is not None and self._table is not None:
            _look_up(self._table, self._staged[begin:end], self._array[begin:end])

    @property
    def tensor(self) -> torch.Tensor:
        """The batch; only whole once every slot is settled."""
        if not self._shape:
            raise WrongUse("no image has landed in this batch")
        return self._tensor

    @property
    def covered(self) -> int:
        """Steps of the batch stage that are already done."""
        return self._writing.covered if self._table is not None else 0

    def _settle_shape(self, image: Image) -> None:
        with self._lock:
            if not self._shape:
                self._allocate(image)
        if image.shape != self._shape or image.dtype != self._dtype:
            raise WrongUse(
                f"images of one batch differ: {self._shape} {self._dtype} and {image.shape} {image.dtype}; "
                "end the per-sample steps with a crop or a Resize to (height, width), or pass collate_fn"
            )

    def _allocate(self, image: Image) -> None:
        height, width, channels = image.shape
        table = self._writing.table if image.dtype == np.uint8 else None
        if table is not None and len(table) not in (1, channels):
            raise WrongUse(f"Normalize has {len(table)} values, the images {channels} channels; give one each")
        dtype = torch.float32 if table is not None else torch.from_numpy(np.empty(0, image.dtype)).dtype
        self._tensor = torch.empty(
            (self._count, channels, height, width), dtype=dtype, pin_memory=self._pinned
        )
        self._array = self._tensor.numpy()
        self._table = None if table is None else np.broadcast_to(table, (channels, 256))
        staged = table is not None and image.nbytes < _STAGED_BELOW
        self._staged = np.zeros((self._count, *image.shape), np.uint8) if staged else None
        self._dtype = image.dtype
        self._shape = image.shape  # last: other threads look at it without the lock


def _look_up(table: NDArray[np.float32], images: Image, out: NDArray[np.float32]) -> None:
    # "clip" because the default mode goes through a buffer; a uint8 is never outside of 256
    for channel, values in enumerate(table):
        np.take(values, images[..., channel], out=out[:, channel], mode="clip")
