"""Tensors in safetensors files: checked and mapped here, written by the library.

A file from elsewhere is read by these lines alone. They allocate nothing that it asks for: an array is a view
of the file, and the file must hold every byte of it.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.errors import MissingExtra, ModelNotFound, ModelRefused
from headwater.models.proto import is_pickled
from headwater.models.version import MOST_TENSORS

MOST_HEADER_BYTES = 16 << 20
_LENGTH = 8
_DTYPES = {
    **{f"U{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"I{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"F{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    "BOOL": np.dtype("?"),
}


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    def nbytes(self, name: str) -> int:
        if self.dtype not in _DTYPES:
            raise ModelRefused(f"tensor {name!r} is of {self.dtype!r}; allowed: {', '.join(_DTYPES)}")
        if any(edge < 0 for edge in self.shape):
            raise ModelRefused(f"tensor {name!r} has the shape {self.shape}, which no tensor has")
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize


def read(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The tensors of a file as views of its mapping, which lives as long as they; raises `ModelRefused`."""
    try:
        with Path(path).open("rb") as file:
            # A file without bytes cannot be mapped.
            empty = not os.fstat(file.fileno()).st_size
            content = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise ModelNotFound(f"there is no file {os.fspath(path)}") from error
    except OSError as error:
        raise ModelNotFound(f"cannot read {os.fspath(path)}: {error.strerror}") from error
    try:
        return parse(memoryview(content))
    except ModelRefused as error:
        raise ModelRefused(f"{os.fspath(path)}: {error}") from error


def parse(content: memoryview) -> dict[str, NDArray[Any]]:
    """The tensors in the bytes of a file, as views; raises `ModelRefused` unless they fill it exactly."""
    entries, values = _read_header(content)
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        start, stop = entry.data_offsets
        if start != end or stop - start != entry.nbytes(name):
            raise ModelRefused(
                f"tensor {name!r} is said to lie at {start} to {stop}; {entry.dtype} {list(entry.shape)} "
                f"from {end} on takes {entry.nbytes(name):,} bytes"
            )
        end = stop
    if end != len(values):
        raise ModelRefused(f"the header tells of {end:,} bytes, and the file has {len(values):,}")
    return {name: _view(values, name, entry) for name, entry in entries.items()}


def dump(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """A safetensors file; the same bytes for the same tensors."""
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise MissingExtra(f"weights need {error.name}; pip install 'headwater[models]'") from error
    # The library writes what lies behind the first element, whatever the strides are.
    done: bytes = save({name: np.require(array, requirements="C") for name, array in tensors.items()})
    return done


def _read_header(content: memoryview) -> tuple[dict[str, _Entry], memoryview]:
    """What the header says of each tensor, and the bytes after it."""
    length = int.from_bytes(content[:_LENGTH], "little")
    begins = bytes(content[_LENGTH : _LENGTH + 1]) == b"{"
    if not begins and is_pickled(content):
        raise ModelRefused("pickled content; save as safetensors")
    if len(content) < _LENGTH or length > min(MOST_HEADER_BYTES, len(content) - _LENGTH):
        raise ModelRefused(
            f"a header of {length:,} bytes in a file of {len(content):,}; "
            f"at most {MOST_HEADER_BYTES:,} are read, and no more than there are"
        )
    if not begins:
        raise ModelRefused("not a safetensors file: its header is no JSON object")
    start = _LENGTH + length
    return _decode(bytes(content[_LENGTH:start])), content[start:]


def _decode(header: bytes) -> dict[str, _Entry]:
    try:
        said = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        said.pop("__metadata__", None)
        found = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in said.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ModelRefused(f"the header cannot be read: {error}") from error
    if len(found) > MOST_TENSORS:
        raise ModelRefused(f"{len(found):,} tensors; at most {MOST_TENSORS:,} are taken")
    return found


def _view(values: memoryview, name: str, entry: _Entry) -> NDArray[Any]:
    start, stop = entry.data_offsets
    try:
        array: NDArray[Any] = np.frombuffer(values[start:stop], _DTYPES[entry.dtype]).reshape(entry.shape)
    except ValueError as error:
        raise ModelRefused(f"tensor {name!r} has a shape that no array has: {error}") from error
    return array
