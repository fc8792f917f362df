"""Further members of a sample, from bytes to values; the extension says how."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.data.files import Buffer
from headwater.errors import SampleCorrupt

_LONGEST_REASON = 200  # parsers quote what they were given


def decode_field(name: str, data: Buffer) -> object:
    """json: the object; txt, text, cls: a string; npy: an array; anything else: bytes."""
    decode = DECODERS.get(name.rpartition(".")[2].lower())
    try:
        return bytes(data) if decode is None else decode(bytes(data))
    except Exception as error:
        # Any: numpy reads an .npy header as a Python literal, and hostile ones get a dozen kinds of errors
        # out of its tokenizer and its dtypes, among them RecursionError, MemoryError and IndexError.
        reason = (str(error) or type(error).__name__)[:_LONGEST_REASON]
        raise SampleCorrupt(f"field {name!r} of {len(data)} bytes cannot be decoded: {reason}") from error


def _array(data: bytes) -> NDArray[np.generic]:
    """An .npy file, without pickle; the size that its header claims is checked before it is used."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"npy version {version}")
    first = version == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which would have to be unpickled")
    held, claimed = len(data) - stream.tell(), math.prod(shape) * dtype.itemsize
    if held != claimed:
        raise ValueError(f"the header claims {claimed} bytes, {held} follow")
    flat = np.frombuffer(data, dtype, offset=stream.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _label(data: bytes) -> str:
    return data.decode("utf-8").strip()


DECODERS: Mapping[str, Callable[[bytes], object]] = {
    "json": msgspec.json.decode,
    "txt": _text,
    "text": _text,
    "cls": _label,
    "npy": _array,
}
