"""From the bytes of a file to pixels."""

from __future__ import annotations

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from headwater.data.image import pillow
from headwater.data.image.exif import turn
from headwater.data.image.header import Data, Header, view_bytes
from headwater.data.image.region import decode_region
from headwater.errors import SampleCorrupt, WrongUse

Pixels = NDArray[np.uint8]
Box = tuple[int, int, int, int]

MODES = {"RGB": 3, "L": 1}
"""Modes that pixels can be had in, and their channels."""


def decode(
    data: Data, header: Header, *, mode: str = "RGB", oriented: bool = True, box: Box | None = None
) -> Pixels:
    """Pixels as height x width x channels; `header` is what `read_header` gave for the same data.

    `box` is (top, left, height, width) in the coordinates of the result without it, and gives exactly
    that part of it; damage below the box may go unnoticed, truncation does not. The result may be a
    view with negative strides (an EXIF orientation): copy it with `np.ascontiguousarray` before torch
    gets it. Raises `SampleCorrupt`.
    """
    if box is not None:
        return _decode_box(data, header, box, mode=mode, oriented=oriented)
    pixels = _decode_stored(data, header, mode)
    return turn(pixels, header.orientation) if oriented and header.orientation != 1 else pixels


def _decode_box(data: Data, header: Header, box: Box, *, mode: str, oriented: bool) -> Pixels:
    top, left, height, width = box
    bottom, right = header.size(oriented=oriented)
    if top < 0 or left < 0 or height < 1 or width < 1 or top + height > bottom or left + width > right:
        raise WrongUse(f"box {box} (top, left, height, width) is not inside an image of {bottom} x {right}")
    if not oriented or header.orientation == 1:
        pixels = decode_region(data, header, box)
        if pixels is not None:
            return _to_mode(pixels, mode)
    pixels = decode(data, header, mode=mode, oriented=oriented)
    return pixels[top : top + height, left : left + width]


def _decode_stored(data: Data, header: Header, mode: str) -> Pixels:
    if not header.subsampling or header.components == 4:
        return pillow.decode(data, header, mode)
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(view_bytes(data), "GRAY" if header.components == 1 else "RGB")
    except (ValueError, KeyError) as error:
        raise SampleCorrupt(f"jpeg cannot be decoded: {error}") from error
    if pixels.shape[0] != header.stored_height or pixels.shape[1] != header.stored_width:
        raise SampleCorrupt(f"jpeg of {pixels.shape[:2]} differs from its header: {header}")
    return pixels if mode == "RGB" and header.components == 3 else _to_mode(pixels, mode)


def _to_mode(pixels: Pixels, mode: str) -> Pixels:
    if pixels.shape[2] == MODES[mode]:
        return pixels
    return pillow.to_grey(pixels) if mode == "L" else np.repeat(pixels, 3, axis=2)
