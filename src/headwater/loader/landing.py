"""Where decoded images land: one tensor per batch, written by many threads, slot by slot.

If the batch stage begins with dtype and normalisation and the batch stays on the CPU, these are done
here, on what was just written and is still in the cache, instead of on the whole batch afterwards.
The operations and their order are those of the steps, so the bits are theirs.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headwater.data.buffers import Buffers
from headwater.data.steps.base import Image, Step
from headwater.data.steps.dtype import Normalize, ToDtype
from headwater.errors import WrongUse

Floats = NDArray[np.float32]

_ALONE_FROM = 1 << 18  # bytes: larger images are normalised one by one, smaller ones a lot at a time


@dataclass(frozen=True)
class Arithmetic:
    """What leading `ToDtype` and `Normalize` steps do to uint8 values, and how many steps that is."""

    covered: int
    scale: ToDtype | None
    normalize: Normalize | None

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Arithmetic | None:
        """None unless the steps begin by making float32."""
        first = steps[0] if steps else None
        if isinstance(first, Normalize):
            return cls(1, ToDtype("float32", scale=True), first)
        if not isinstance(first, ToDtype) or first.dtype != "float32":
            return None
        second = steps[1] if len(steps) > 1 else None
        scale = first if first.scale else None
        return cls(2, scale, second) if isinstance(second, Normalize) else cls(1, scale, None)

    def run(self, values: Floats) -> None:
        """In place, on (n, channels, height, width)."""
        with np.errstate(all="ignore"):  # slots that failed hold anything
            if self.scale is not None and self.scale.divide:
                values /= np.float32(255.0)
            elif self.scale is not None:
                values *= np.float32(1.0 / 255.0)
            if self.normalize is not None:
                values -= _per_channel(self.normalize.mean)
                values /= _per_channel(self.normalize.std)


class Landing:
    """The tensor of one batch. Memory is allocated when the first image shows its shape."""

    def __init__(self, count: int, arithmetic: Arithmetic | None, buffers: Buffers | None) -> None:
        """`buffers` lends the memory; None takes page-locked memory, which torch itself uses again."""
        self._count = count
        self._arithmetic = arithmetic
        self._buffers = buffers
        self._lock = threading.Lock()
        self._shape: tuple[int, ...] = ()
        self._dtype: np.dtype[np.generic] | None = None

    def put(self, slot: int, image: Image) -> None:
        if image.shape != self._shape or image.dtype != self._dtype:
            self._settle_shape(image)
        self._array[slot] = image.transpose(2, 0, 1)
        if self._alone and self._arithmetic is not None:
            self._arithmetic.run(self._array[slot : slot + 1])

    def settle(self, begin: int, end: int) -> None:
        """Slots begin..end-1 have been put, or never will be."""
        if self._shape and not self._alone and self._arithmetic is not None:
            self._arithmetic.run(self._array[begin:end])

    @property
    def tensor(self) -> torch.Tensor:
        """The batch; only whole once every slot is settled."""
        return self._tensor

    @property
    def covered(self) -> int:
        """Steps of the batch stage that are already done."""
        return self._arithmetic.covered if self._arithmetic is not None else 0

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
        if image.dtype != np.uint8:
            self._arithmetic = None  # a user's function made these numbers: the steps see them as they are
        elif self._arithmetic is not None:
            self._check_channels(channels)
        kind = image.dtype if self._arithmetic is None else np.dtype(np.float32)
        shape = (self._count, channels, height, width)
        if self._buffers is None:
            self._tensor = torch.empty(shape, dtype=_dtype(kind), pin_memory=True)
        else:
            lent = self._buffers.lend(math.prod(shape) * kind.itemsize)
            self._tensor = torch.from_numpy(lent).view(_dtype(kind)).view(shape)
        self._array = self._tensor.numpy()
        self._alone = self._array[0].nbytes >= _ALONE_FROM
        self._dtype = image.dtype
        self._shape = image.shape  # last: other threads look at it without the lock

    def _check_channels(self, channels: int) -> None:
        normalize = self._arithmetic.normalize if self._arithmetic is not None else None
        if normalize is not None and len(normalize.mean) not in (1, channels):
            raise WrongUse(
                f"mean has {len(normalize.mean)} values, the images {channels} channels; give one each"
            )


def _dtype(kind: np.dtype[np.generic]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, kind)).dtype


def _per_channel(values: Sequence[float]) -> Floats:
    return np.array(values, np.float32).reshape(-1, 1, 1)
