"""What Pillow decodes for us: PNG, WebP, the rare kinds of JPEG; and its conversions of colour.

A JPEG comes here if it is CMYK, or if its subsampling is none that TurboJPEG knows; of the latter
Pillow notices truncation, but not other damage.
"""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from headwater.data.image import png
from headwater.data.image.header import Data, Header, view_bytes
from headwater.errors import SampleCorrupt

Pixels = NDArray[np.uint8]

_FAULTS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Warning,
)
"""What Pillow's plugins raise on damaged files; a warning where the user made warnings errors."""


def decode(data: Data, header: Header, mode: str) -> Pixels:
    """Pixels of the first frame, as stored; alpha is dropped, 16 bits give their high byte."""
    try:
        with _open(data, header) as image:
            if image.size != (header.stored_width, header.stored_height):
                raise SampleCorrupt(f"{header.format} of {image.size} differs from its header: {header}")
            if header.format == "png":
                _check_rows(image, view_bytes(data))
            return _convert(image, mode)
    except _FAULTS as error:
        raise SampleCorrupt(f"{header.format} cannot be decoded: {error}") from error


def to_grey(pixels: Pixels) -> Pixels:
    """ITU-R 601 luma of RGB pixels, as Pillow's convert("L")."""
    return np.array(Image.fromarray(np.ascontiguousarray(pixels)).convert("L"))[:, :, None]


def _open(data: Data, header: Header) -> Image.Image:
    if header.subsampling:
        return _open_cmyk(data)
    return Image.open(io.BytesIO(view_bytes(data)), formats=(header.format.upper(),))


def _open_cmyk(data: Data) -> Image.Image:
    """CMYK by simplejpeg, which refuses damaged data where Pillow does not; inverted, as Adobe stores it."""
    inks = 255 - simplejpeg.decode_jpeg(view_bytes(data), "CMYK")
    return Image.frombuffer("CMYK", (inks.shape[1], inks.shape[0]), inks, "raw", "CMYK", 0, 1)


def _check_rows(image: Image.Image, data: bytes | memoryview) -> None:
    """Rows that are not in the file come out as zeros; only then is it worth a closer look."""
    image.load()
    last = image.crop((0, image.height - 1, image.width, image.height)).tobytes()
    if (not any(last) or png.is_interlaced(data)) and not png.holds_all_rows(data):
        raise SampleCorrupt(f"png of {len(data)} bytes holds fewer than its {image.height} rows: truncated")


def _convert(image: Image.Image, mode: str) -> Pixels:
    if image.mode.startswith("I"):  # 16-bit grey; Pillow's own conversion would clip it
        high = (np.asarray(image) >> 8).astype(np.uint8)[:, :, None]
        return np.repeat(high, 3, axis=2) if mode == "RGB" else high
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # the same colours; straight to RGB, Pillow would warn
    pixels = np.array(image.convert(mode))  # not asarray, which would be read-only
    return pixels if mode == "RGB" else pixels[:, :, None]
