"""Pixels as they are, in C order."""

from __future__ import annotations

import math

import numpy as np

from headwater.data.codecs.base import Codec, Pixels, Shape
from headwater.errors import SampleCorrupt


def _pack(pixels: Pixels) -> memoryview:
    return np.ascontiguousarray(pixels).data.cast("B")


def _unpack(data: bytes | memoryview, shape: Shape) -> Pixels:
    if len(data) != math.prod(shape):
        raise SampleCorrupt(f"{len(data)} bytes of pixels are not {shape}: damaged or truncated")
    return np.frombuffer(data, np.uint8).reshape(shape)


CODEC = Codec(_pack, _unpack)
