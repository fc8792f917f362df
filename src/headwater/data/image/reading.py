"""Telling formats apart by their first bytes, and reading headers of files and of heads of files."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headwater.data.image import jpeg, png, webp
from headwater.data.image.header import Data, Header, view_bytes
from headwater.data.image.limits import DEFAULT_LIMITS, Limits
from headwater.errors import SampleCorrupt

_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_RIFF, _WEBP = b"RIFF", b"WEBP"
_STRANGERS = {
    b"GIF8": "a gif",
    b"BM": "a bmp",
    b"II*\0": "a tiff",
    b"MM\0*": "a tiff",
    b"<svg": "an svg",
    b"<?xml": "an xml or svg",
    b"<!DO": "an html page",
    b"<htm": "an html page",
    b"%PDF": "a pdf",
    b"\xff\x0a": "a jpeg xl",
    b"\0\0\0\x0cJXL ": "a jpeg xl",
    b"\0\0\0\x0cjP  ": "a jpeg 2000",
    b"\xff\x4f\xff\x51": "a jpeg 2000",
    b"\x1f\x8b": "a gzip",
    b"PK\x03\x04": "a zip",
    b"8BPS": "a photoshop",
}


def read_header(data: Data, limits: Limits = DEFAULT_LIMITS) -> Header:
    """The header of a whole file, told by its bytes; nothing is decoded.

    Raises `SampleCorrupt` for what is damaged, truncated or no JPEG, PNG or WebP, and
    `SampleTooLarge` for what is past a cap.
    """
    raw = view_bytes(data)
    if len(raw) > limits.bytes:
        limits.check_bytes(len(raw))
    if raw[:3] == _JPEG:
        return jpeg.read_jpeg(raw, limits)
    if raw[:8] == _PNG:
        return png.read_png(raw, limits)
    if raw[:4] == _RIFF and raw[8:12] == _WEBP:
        return webp.read_webp(raw, limits)
    raise SampleCorrupt(f"{_name_stranger(bytes(raw[:32]), len(raw))}; headwater reads jpeg, png and webp")


def read_sizes(heads: Sequence[Data], *, oriented: bool = True) -> NDArray[np.int64]:
    """Height and width, one row per head; 0, 0 where the head was too short or is of no image.

    A head is the first bytes of a file: 4 kB are enough for most photos. A WebP file with EXIF keeps
    it at its end, so its oriented size is not in its head.
    """
    return np.array([_read_size(head, oriented) for head in heads], dtype=np.int64).reshape(-1, 2)


def _read_size(head: Data, oriented: bool) -> tuple[int, int]:
    raw = view_bytes(head)
    try:
        height, width, orientation = _peek(raw)
    except (struct.error, IndexError, SampleCorrupt):
        return 0, 0
    if not oriented or orientation == 1:
        return height, width
    return (width, height) if orientation > 4 else (height, width) if orientation else (0, 0)


def _peek(raw: bytes | memoryview) -> tuple[int, int, int]:
    """Height, width and orientation; orientation 0 where it lies behind the head."""
    if raw[:3] == _JPEG:
        at, _, orientation = jpeg.find_frame(raw)
        height, width = struct.unpack_from(">HH", raw, at + 5)
        return height, width, orientation
    if raw[:8] == _PNG:
        height, width, _, _ = png.read_start(raw)
        return height, width, png.read_turn(raw)
    if raw[:4] == _RIFF and raw[8:12] == _WEBP:
        height, width, _, has_exif = webp.read_start(raw)
        return height, width, 0 if has_exif else 1
    return 0, 0, 1


def _name_stranger(head: bytes, length: int) -> str:
    if not length:
        return "file is empty"
    if head[4:8] == b"ftyp":
        return f"file looks like heif, avif or a film (brand {head[8:12].decode('latin-1')!r})"
    for magic, name in _STRANGERS.items():
        if head.startswith(magic):
            return f"file looks like {name} file"
    if not any(head):
        return f"file of {length} bytes begins with zeros, as a lost block or a failed download does"
    text = all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head)
    return f"file looks like text ({head[:16]!r})" if text else f"file begins with bytes {head[:8].hex(' ')}"
