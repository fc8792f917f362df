from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image, ImageOps

from headwater.data.image.exif import read_orientation, turn
from pictures import exif, photo


def block(order: str, kind: int, value: int, *, tag: int = 0x0112) -> bytes:
    magic = b"II*\0" if order == "<" else b"MM\0*"
    packed = struct.pack(order + ("I" if kind == 4 else "Hxx"), value)
    maker = struct.pack(order + "HHI", 0x010F, 2, 1) + b"x\0\0\0"
    return magic + struct.pack(order + "IH", 8, 2) + maker + struct.pack(order + "HHI", tag, kind, 1) + packed


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_read_in_both_byte_orders_and_widths(order: str, kind: int, orientation: int) -> None:
    assert read_orientation(block(order, kind, orientation)) == orientation


@pytest.mark.parametrize(
    "tiff",
    [b"", b"II*\0", block("<", 3, 0), block("<", 3, 9), block("<", 2, 6), block("<", 3, 6, tag=0x0113)]
    + [block("<", 3, 6)[:length] for length in (7, 9, 20, 30)]
    + [b"II*\0\xff\xff\xff\xff", b"XX" + block("<", 3, 6)[2:]],
)
def test_what_makes_no_sense_is_upright(tiff: bytes) -> None:
    assert read_orientation(tiff) == 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turning_is_what_pillow_does(orientation: int) -> None:
    pixels = photo(7, 11)
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    assert read_orientation(exif(orientation).removeprefix(b"Exif\0\0")) == orientation
    assert np.array_equal(turn(pixels, orientation), np.asarray(ImageOps.exif_transpose(image)))
