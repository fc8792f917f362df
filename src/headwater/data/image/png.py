"""PNG chunks: size, channels, orientation, and whether the file reaches its end."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from headwater.data.image.exif import read_orientation
from headwater.data.image.header import Header
from headwater.data.image.limits import Limits
from headwater.errors import SampleCorrupt

_chunk = struct.Struct(">I4s").unpack_from
_start = struct.Struct(">I4sIIBB").unpack_from
_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_INDEXED = 3
_DEPTHS = frozenset((1, 2, 4, 8, 16))
_DEFLATE_RATIO = 1032
"""Deflate cannot make data smaller than by this."""
_WHOLE = ((0, 0, 1, 1),)
_ADAM7 = (
    (0, 0, 8, 8),
    (0, 4, 8, 8),
    (4, 0, 8, 4),
    (0, 2, 4, 4),
    (2, 0, 4, 2),
    (0, 1, 2, 2),
    (1, 0, 2, 1),
)
"""First row, first column, and the distances to the next, of each pass."""


def read_png(data: bytes | memoryview, limits: Limits) -> Header:
    """The header of a whole PNG file; raises `SampleCorrupt` or `SampleTooLarge`."""
    try:
        height, width, depth, channels = read_start(data)
        orientation = read_turn(data)
        _find_end(data)
    except struct.error:
        raise SampleCorrupt(f"png of {len(data)} bytes ends before its last chunk: truncated") from None
    limits.check_pixels(height, width)
    limits.check_seconds(1, height * width, len(data))
    needed = height * width * depth // (8 * _DEFLATE_RATIO)
    if needed > len(data):
        raise SampleCorrupt(
            f"png header says {height} x {width} pixels, which take at least {needed} bytes; the file has"
            f" {len(data)}: truncated, or its header lies"
        )
    return Header("png", height, width, orientation, channels)


def read_start(data: bytes | memoryview) -> tuple[int, int, int, int]:
    """Height, width, bits per sample and channels; raises `struct.error` when the data is too short."""
    length, name, width, height, depth, kind = _start(data, 8)
    if name != b"IHDR" or length != 13 or not height or not width:
        raise SampleCorrupt(f"png begins with chunk {name!r} of {length} bytes, {height} x {width}: damaged")
    if kind not in _CHANNELS or depth not in _DEPTHS:
        raise SampleCorrupt(f"png header says colour type {kind} of {depth} bits: damaged")
    return height, width, depth, _CHANNELS[kind]


def read_turn(data: bytes | memoryview) -> int:
    """The EXIF orientation from a chunk before the pixels, where the PNG specification wants it.

    Raises `struct.error` when the data ends before the first pixels.
    """
    at = 8
    while True:
        length, name = _chunk(data, at)
        if name == b"IDAT" or name == b"IEND":
            return 1
        if name == b"eXIf":
            return read_orientation(bytes(data[at + 8 : at + 8 + length]))
        at += 12 + length


def _find_end(data: bytes | memoryview) -> None:
    """Walk over all chunks: Pillow does without the last one, and without more if a script told it to."""
    at, name = 8, b""
    while name != b"IEND":
        length, name = _chunk(data, at)
        at += 12 + length
    if at > len(data):
        raise struct.error


def holds_all_rows(data: bytes | memoryview) -> bool:
    """Whether as many bytes are compressed in the file as its pixels take.

    Pillow leaves rows that never come at zero, without a word. Takes an inflation, so it is asked only
    where the last row came out as zeros.
    """
    missing, inflater = _count_row_bytes(data), zlib.decompressobj()
    for piece in _pixel_chunks(data):
        while piece and missing > 0:
            missing -= len(inflater.decompress(piece, 1 << 20))
            piece = inflater.unconsumed_tail
    return missing <= 0


def is_interlaced(data: bytes | memoryview) -> bool:
    """Whether the rows come in Adam7's order, so that any of them may be the last."""
    return data[28] != 0


def _count_row_bytes(data: bytes | memoryview) -> int:
    _, _, width, height, depth, kind = _start(data, 8)
    bits = depth * (1 if kind == _INDEXED else _CHANNELS[kind])
    total = 0
    for top, left, down, across in _ADAM7 if is_interlaced(data) else _WHOLE:
        rows, columns = -(-(height - top) // down), -(-(width - left) // across)
        if rows > 0 and columns > 0:
            total += rows * (1 + (columns * bits + 7) // 8)
    return total


def _pixel_chunks(data: bytes | memoryview) -> Iterator[bytes]:
    at, name = 8, b""
    while name != b"IEND":
        length, name = _chunk(data, at)
        if name == b"IDAT":
            yield bytes(data[at + 8 : at + 8 + length])
        at += 12 + length
