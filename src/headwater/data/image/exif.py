"""The orientation tag of an EXIF block, and turning pixels by it."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ORIENTATION = 0x0112
_SHORT, _LONG = 3, 4


def read_orientation(tiff: bytes) -> int:
    """The orientation (1 to 8) in a TIFF-structured EXIF block; 1 where it is absent or makes no sense.

    A damaged EXIF block does not damage the pixels, so it is no error; Pillow holds it the same way.
    """
    order = _ORDERS.get(tiff[:4])
    if order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, directory)
    except struct.error:
        return 1
    return _find_tag(tiff[directory + 2 : directory + 2 + 12 * count], order)


def _find_tag(entries: bytes, order: str) -> int:
    whole = entries[: len(entries) // 12 * 12]
    for tag, kind, _, short, rest in struct.iter_unpack(order + "HHIHH", whole):
        if tag == _ORIENTATION:
            value = short + rest if kind == _LONG else short  # one half of a small LONG is zero
            return value if kind in (_SHORT, _LONG) and 1 <= value <= 8 else 1
    return 1


def turn(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """The upright image, as a view: its strides may be negative, so copy before handing it to torch."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels
