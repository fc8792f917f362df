"""Lossless codecs for pixels at a cut: what a store packs, its client unpacks to the same bytes.

A codec packs height x width x channels of uint8 and knows nothing of samples. The size of a picture travels
beside what it packs, and a checksum is the wire's affair.
"""

from __future__ import annotations

import numpy as np

from headwater.data.codecs import jpegxl, plain, zstd
from headwater.data.codecs.base import Codec, Pixels, Shape
from headwater.data.image.header import Data, view_bytes
from headwater.errors import SampleCorrupt, WrongUse

__all__ = ["CODECS", "Codec", "Pixels", "Shape", "decode", "encode", "load"]

CODECS: dict[str, Codec] = {"none": plain.CODEC, "zstd": zstd.CODEC, **jpegxl.find_codecs()}
"""By the name that is sent: the pixels as they are in C order, differences packed by zstd at level 1, and,
where the extra `codecs` is installed, JPEG XL at effort 1 and 3."""


def encode(name: str, pixels: Pixels) -> memoryview:
    """The pixels, packed, as a contiguous view of bytes: perhaps of the pixels' own memory.

    Raises `WrongUse` for a codec that does not exist, for anything but height x width x channels of uint8,
    and for a picture that the codec cannot hold.
    """
    codec = _find(name)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or not pixels.size:
        raise WrongUse(
            f"codec {name!r} packs height x width x channels of uint8, none of them 0;"
            f" this is {pixels.shape} of {pixels.dtype}"
        )
    return codec.encode(pixels)


def decode(name: str, data: Data, shape: Shape) -> Pixels:
    """The pixels that were packed, perhaps as a read-only view of `data`.

    No more is allocated than `shape` says, whatever the data claims; so hold `shape` to limits first.
    Raises `WrongUse` for a codec that does not exist, `SampleCorrupt` for data that is not exactly that.
    """
    codec = _find(name)
    if len(shape) != 3 or min(shape) < 1:
        raise SampleCorrupt(f"pixels are said to be {shape}; height, width and channels must be at least 1")
    return codec.decode(view_bytes(data), shape)


def load(name: str) -> None:
    """Import what the codec needs, which its first use would do otherwise."""
    _find(name).load()


def _find(name: str) -> Codec:
    if name not in CODECS:
        raise WrongUse(f"no codec is called {name!r}; known: {', '.join(CODECS)}")
    return CODECS[name]
