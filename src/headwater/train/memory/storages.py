"""Knowing a storage again without keeping it."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class WeakStorage:
    """While it lives, no other storage has this `address`, even if the memory is long gone."""

    __slots__ = ("_ref", "address")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._ref = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.address: int = storage._cdata

    @property
    def gone(self) -> bool:
        """Whether nothing holds its memory any more."""
        return bool(self._ref.expired())  # type: ignore[no-untyped-call]


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether its values are what lies in its storage, and changes of it are counted.

    Not so for other layouts, subclasses, what `inference_mode` made, and what is negated, conjugated or zero
    by a mark alone.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    if tensor.is_nested or tensor.is_inference():
        return False
    return not (tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor())


def is_loose(tensor: torch.Tensor) -> bool:
    """Whether it is a part of a storage, and the other parts may change without its version telling.

    Such are the pieces of `unsafe_chunk`, with which torch makes recurrent cells.
    """
    return tensor._base is None and tensor.numel() * tensor.itemsize < tensor.untyped_storage().nbytes()


def view_of(
    tensor: torch.Tensor, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    """A part of the tensor's storage that counts its versions with the tensor, where torch can make one."""
    if tensor.dtype != dtype:
        flat = tensor.dim() == 1 and tensor.is_contiguous() and not tensor.storage_offset()
        if not flat or tensor.numel() * tensor.itemsize % dtype.itemsize:
            return part_of(tensor, dtype, size, stride, offset)
        tensor = tensor.view(dtype)
    same = tensor.shape == size and tensor.stride() == stride and tensor.storage_offset() == offset
    return tensor if same else tensor.as_strided(size, stride, offset)


def part_of(
    tensor: torch.Tensor, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    """A view of the tensor's storage."""
    same = tensor.dtype == dtype and tensor.shape == size and tensor.stride() == stride
    if same and tensor.storage_offset() == offset:
        return tensor
    empty = torch.empty(0, dtype=dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), offset, size, stride)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All of the tensor's storage; what is written to it does not count as a change of the tensor."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
