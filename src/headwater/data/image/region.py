"""Decoding only the box of a JPEG that is needed, with exactly the pixels of a full decode.

All of the file is still unpacked (so damage anywhere is still found), but only what the box needs
is transformed, upsampled and converted.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from headwater.data.image import turbojpeg
from headwater.data.image.header import Data, Header

Pixels = NDArray[np.uint8]
Box = tuple[int, int, int, int]

WORTHWHILE_SHARE = 0.6
"""Of the image's pixels, with the MCUs around the box; above it a full decode is as fast."""
WORTHWHILE_PIXELS = 160 * 160
"""Of the image; below it the calls cost more than they save."""

_MCUS = {
    "444": (8, 8, 0, 0),
    "422": (8, 16, 0, 1),
    "420": (16, 16, 1, 1),
    "440": (16, 8, 1, 0),
    "411": (8, 32, 0, 0),
    "grey": (8, 8, 0, 0),
}
"""Height and width of an MCU; rows and columns around a pixel that smooth upsampling of chroma looks at."""


def decode_region(data: Data, header: Header, box: Box, *, always: bool = False) -> Pixels | None:
    """The box (top, left, height, width; stored orientation) in the file's own channels, RGB or grey.

    None where it cannot be had this way, or a full decode is faster (unless `always`), or the library
    complains: the full decode then says what is wrong.
    """
    if not header.regionable:
        return None
    area = _grow(header, box)
    if not always and not (_is_worthwhile(header, area) and region_available()):
        return None
    decoder = turbojpeg.decoder()
    return None if decoder is None else _decode_area(decoder, data, header=header, area=area, box=box)


def _is_worthwhile(header: Header, area: Box) -> bool:
    top, left, bottom, right = area
    pixels = header.stored_height * header.stored_width
    return pixels >= WORTHWHILE_PIXELS and (bottom - top) * (right - left) <= WORTHWHILE_SHARE * pixels


def _decode_area(
    decoder: turbojpeg.Decoder, data: Data, *, header: Header, area: Box, box: Box
) -> Pixels | None:
    top, left, bottom, right = area
    grey = header.components == 1
    pixels = np.empty((bottom - top, right - left, 1 if grey else 3), np.uint8)
    size = header.stored_height, header.stored_width
    form = turbojpeg.GREY if grey else turbojpeg.RGB
    if not decoder.decode(data, pixels, corner=(top, left), size=size, form=form):
        return None
    down, across = box[0] - top, box[1] - left
    return pixels[down : down + box[2], across : across + box[3]]


def _grow(header: Header, box: Box) -> Box:
    """Top, left, bottom and right of the MCUs that decide the box's pixels."""
    tall, wide, rows, columns = _MCUS[header.subsampling]
    top = max(0, box[0] - rows) // tall * tall
    left = max(0, box[1] - columns) // wide * wide
    bottom = min(header.stored_height, -(-(box[0] + box[2] + rows) // tall) * tall)
    right = min(header.stored_width, -(-(box[1] + box[3] + columns) // wide) * wide)
    if columns and left and right - left <= 4:
        left -= wide  # libjpeg upsamples a chroma plane of two columns or fewer without smoothing
    return top, left, bottom, right


@cache
def region_available() -> bool:
    """Whether a TurboJPEG 3 library is at hand and gives simplejpeg's pixels on a built-in image."""
    if turbojpeg.load() is None:
        return False
    noise = np.arange(48 * 80 * 3, dtype=np.uint32) * np.uint32(2654435761) >> np.uint32(24)
    data = simplejpeg.encode_jpeg(noise.astype(np.uint8).reshape(48, 80, 3), colorsubsampling="420")
    header = Header("jpeg", 48, 80, subsampling="420", regionable=True)
    part = decode_region(data, header, (17, 33, 14, 30), always=True)
    return part is not None and np.array_equal(part, simplejpeg.decode_jpeg(data)[17:31, 33:63])
