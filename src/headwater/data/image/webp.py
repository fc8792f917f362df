"""WebP chunks: size, orientation, and whether the file is as long as it says."""

from __future__ import annotations

import struct

from headwater.data.image.exif import read_orientation
from headwater.data.image.header import Header
from headwater.data.image.limits import Limits
from headwater.errors import SampleCorrupt

_chunk = struct.Struct("<4sI").unpack_from
_EXIF_FLAG, _ALPHA_FLAG = 0x08, 0x10


def read_webp(data: bytes | memoryview, limits: Limits) -> Header:
    """The header of a whole WebP file; raises `SampleCorrupt` or `SampleTooLarge`."""
    try:
        (length,) = struct.unpack_from("<I", data, 4)
        height, width, alpha, has_exif = read_start(data)
    except (struct.error, IndexError):
        raise SampleCorrupt(f"webp of {len(data)} bytes ends inside its header: truncated") from None
    if length + 8 > len(data):
        raise SampleCorrupt(f"webp header says {length + 8} bytes, the file has {len(data)}: truncated")
    limits.check_pixels(height, width)
    limits.check_seconds(1, height * width, len(data))
    orientation = _read_turn(data) if has_exif else 1
    return Header("webp", height, width, orientation, 4 if alpha else 3)


def read_start(data: bytes | memoryview) -> tuple[int, int, bool, bool]:
    """Height, width, has alpha, has EXIF; raises `struct.error` when the data is too short."""
    name, _ = _chunk(data, 12)
    if name == b"VP8X":
        flags, low, high, tall_low, tall_high = struct.unpack_from("<B3xHBHB", data, 20)
        width, height = 1 + low + (high << 16), 1 + tall_low + (tall_high << 16)
        return height, width, bool(flags & _ALPHA_FLAG), bool(flags & _EXIF_FLAG)
    if name == b"VP8L":
        signature, bits = struct.unpack_from("<BI", data, 20)
        if signature == 0x2F:
            return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF), bool(bits >> 28 & 1), False
    if name == b"VP8 ":
        start, width, height = struct.unpack_from("<3sHH", data, 23)
        if start == b"\x9d\x01\x2a" and width & 0x3FFF and height & 0x3FFF:
            return height & 0x3FFF, width & 0x3FFF, False, False
    raise SampleCorrupt(f"webp begins with chunk {name!r}, which holds no image header: damaged")


def _read_turn(data: bytes | memoryview) -> int:
    """The EXIF orientation; its chunk is at the end of the file."""
    at = 12
    while at + 8 <= len(data):
        name, length = _chunk(data, at)
        if name == b"EXIF":
            block = bytes(data[at + 8 : at + 8 + length])
            return read_orientation(block.removeprefix(b"Exif\0\0"))
        at += 8 + length + (length & 1)
    return 1
