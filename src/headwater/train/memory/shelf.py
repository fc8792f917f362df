"""Tensors that are out of memory while one operation runs that does not read them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headwater.train.memory.places import Extent
from headwater.train.memory.spill import SpillFile
from headwater.train.memory.storages import part_of


class Shelf:
    """Memory of a CPU, for a while in the spill file."""

    def __init__(self, file: SpillFile) -> None:
        self._file = file

    @contextmanager
    def without(self, tensor: torch.Tensor) -> Iterator[None]:
        """The tensor's memory is free inside. Raises `SpillFailed` where the disk has no room for it.

        The storage itself is emptied and filled again, so whoever holds it finds it as it was, at another
        address. Only for a tensor of which nobody knows the address, and that no other thread reads.
        """
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        with self._written(storage) as extent:
            storage.resize_(0)
            try:
                yield
            finally:
                storage.resize_(size)
                self._file.read(extent, storage.data_ptr())

    @contextmanager
    def _written(self, storage: torch.UntypedStorage) -> Iterator[Extent]:
        extent = self._file.reserve(storage.nbytes())
        try:
            self._file.write(extent, storage.data_ptr())
            yield extent
        finally:
            self._file.release(extent)


def without_content(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape and layout that takes no memory until somebody reads it: then it is zeros.

    A shared mapping, which the system does not count as a process's data.
    """
    pages = mmap.mmap(-1, max(tensor.untyped_storage().nbytes(), 1))
    place = torch.frombuffer(pages, dtype=torch.uint8)
    return part_of(place, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
