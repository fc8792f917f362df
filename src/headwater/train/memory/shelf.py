"""Tensors that are out of memory while one operation runs that does not read them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headwater.errors import SpillFailed
from headwater.train.memory.places import Extent
from headwater.train.memory.spill import SpillFile
from headwater.train.memory.storages import part_of


class NoDisk(Exception):
    """A tensor could not be set aside, and is where it was."""


class Shelf:
    """Memory of a CPU, for a while in the spill file."""

    def __init__(self, file: SpillFile) -> None:
        self._file = file

    @contextmanager
    def without(self, tensor: torch.Tensor) -> Iterator[None]:
        """The tensor's memory is free inside. Raises `NoDisk` where the disk takes nothing.

        The storage itself is emptied and filled again, so whoever holds it finds it as it was, at another
        address; if it cannot be filled again it stays empty, which tells. Only for a tensor of which nobody
        knows the address, and that no other thread reads.
        """
        storage = tensor.untyped_storage()
        size, extent = storage.nbytes(), self._write(storage)
        try:
            storage.resize_(0)
            try:
                yield
            finally:
                self._fill(storage, size, extent)
        finally:
            self._file.release(extent)

    def _write(self, storage: torch.UntypedStorage) -> Extent:
        try:
            extent = self._file.reserve(storage.nbytes())
        except SpillFailed as error:
            raise NoDisk(str(error)) from error
        try:
            self._file.write(extent, storage.data_ptr())
        except BaseException as error:
            self._file.release(extent)
            if isinstance(error, OSError):
                raise NoDisk(str(error)) from error
            raise
        return extent

    def _fill(self, storage: torch.UntypedStorage, size: int, extent: Extent) -> None:
        storage.resize_(size)
        try:
            self._file.read(extent, storage.data_ptr())
        except BaseException:
            storage.resize_(0)
            raise


def without_content(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape and layout that takes no memory until somebody reads it: then it is zeros.

    A shared mapping, which the system does not count as a process's data. Raises `MemoryError` where even
    that is not to be had.
    """
    try:
        pages = mmap.mmap(-1, max(tensor.untyped_storage().nbytes(), 1))
    except OSError as error:
        raise MemoryError(f"no room to map {tensor.untyped_storage().nbytes():,} bytes") from error
    place = torch.frombuffer(pages, dtype=torch.uint8)
    return part_of(place, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
