"""Decoding only the box of a JPEG that is needed, with exactly the pixels of a full decode.

The file is unpacked down to the box's last row, and only what the box needs is transformed,
upsampled and converted. So damage below the box goes unseen, save one kind: a file without its end
marker is truncated, and is left to the full decode to refuse, whichever box is asked for.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from headwater.data.image import turbojpeg
from headwater.data.image.header import Data, Header, view_bytes

Pixels = NDArray[np.uint8]
Box = tuple[int, int, int, int]
"""Top, left, height, width."""
Size = tuple[int, int]
Area = tuple[int, int, int, int]
"""Top, left, bottom, right."""

WORTHWHILE_SHARE = 0.6
"""Of the image's pixels, with the columns around the box; above it a full decode is as fast."""
WORTHWHILE_PIXELS = 160 * 160
"""Of the image; below it the calls cost more than they save."""

_EOI = b"\xff\xd9"
_TAIL = 4096
"""Where the end marker is looked for: some cameras and tools pad their files."""

_MCU = {"444": (8, 8), "422": (8, 16), "420": (16, 16), "440": (16, 8), "411": (8, 32), "grey": (8, 8)}
"""Height and width of an MCU."""
_HALVED = 16
"""A side of an MCU along which chroma is halved, and upsampled smoothly; a quarter is only repeated."""


def decode_region(data: Data, header: Header, box: Box, *, always: bool = False) -> Pixels | None:
    """The box (top, left, height, width; stored orientation) in the file's own channels, RGB or grey.

    None where it cannot be had this way, or a full decode is faster (unless `always`), or the library
    complains: the full decode then says what is wrong.
    """
    if not header.regionable:
        return None
    size = header.stored_height, header.stored_width
    _, left, _, right = grow(box, size, subsampling=header.subsampling)
    area = box[0], left, box[0] + box[2], right  # the library keeps the rows around it by itself
    if not always and not (_is_worthwhile(header, area) and region_available()):
        return None
    if not _has_end(view_bytes(data)):
        return None
    decoder = turbojpeg.decoder()
    return None if decoder is None else _decode_area(decoder, data, header=header, area=area, box=box)


def _has_end(data: bytes | memoryview) -> bool:
    return data[-2:] == _EOI or _EOI in bytes(data[-_TAIL:])


def _is_worthwhile(header: Header, area: Area) -> bool:
    top, left, bottom, right = area
    pixels = header.stored_height * header.stored_width
    return pixels >= WORTHWHILE_PIXELS and (bottom - top) * (right - left) <= WORTHWHILE_SHARE * pixels


def _decode_area(
    decoder: turbojpeg.Decoder, data: Data, *, header: Header, area: Area, box: Box
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


def grow(box: Box, size: Size, *, subsampling: str) -> Area:
    """The whole MCUs that the box's pixels are made of; box and size (height, width) are as stored.

    Smooth upsampling of chroma looks at one pixel beyond. At a border of MCUs, or at the image's edge,
    it does the same to the part as to the whole.
    """
    top, left, height, width = box
    tall, wide = _MCU[subsampling]
    top, bottom = _grow_span(top, height, side=tall, end=size[0])
    left, right = _grow_span(left, width, side=wide, end=size[1])
    if wide == _HALVED and left and right - left <= 4:
        left -= wide  # libjpeg upsamples a chroma plane of two columns or fewer without smoothing
    return top, left, bottom, right


def _grow_span(start: int, length: int, *, side: int, end: int) -> tuple[int, int]:
    margin = 1 if side == _HALVED else 0
    first, last = max(0, start - margin), start + length + margin
    return first // side * side, min(end, -(-last // side) * side)


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
