"""JPEG markers up to the first scan: size, components, subsampling, orientation.

Stricter than libjpeg, which skips garbage between markers with a warning: a file that passes here
has one frame header, and libjpeg reads the same one, so it allocates what was checked.
"""

from __future__ import annotations

import struct

from headwater.data.image.exif import read_orientation
from headwater.data.image.header import Header
from headwater.data.image.limits import Limits
from headwater.data.image.scans import count_scans
from headwater.errors import SampleCorrupt

Raw = bytes | memoryview

_SOS, _APP1 = 0xDA, 0xE1
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_DECODABLE = frozenset((0xC0, 0xC1, 0xC2, 0xC9, 0xCA))
_PROGRESSIVE = frozenset((0xC2, 0xCA))
_ARITHMETIC = frozenset((0xC9, 0xCA))
_SKIPPED = frozenset((0xC4, 0xCC, 0xDB, 0xDC, 0xDD, 0xFE, *range(0xE0, 0xF0)))
"""Tables, comments and application data."""
_COMPONENTS = frozenset((1, 3, 4))
_SUBSAMPLINGS = {
    b"\x11\x11\x11": "444",
    b"\x21\x11\x11": "422",
    b"\x22\x11\x11": "420",
    b"\x12\x11\x11": "440",
    b"\x41\x11\x11": "411",
    b"\x11\x11\x11\x11": "444",
    b"\x21\x11\x11\x21": "422",
    b"\x22\x11\x11\x22": "420",
}

_segment = struct.Struct(">BBH").unpack_from
_frame = struct.Struct(">BHHB").unpack_from


def read_jpeg(data: Raw, limits: Limits) -> Header:
    """The header of a whole JPEG file; raises `SampleCorrupt` or `SampleTooLarge`."""
    try:
        at, kind, orientation = find_frame(data)
        precision, height, width, components = _frame(data, at + 4)
        start = _find_scan(data, at)
        first = data[start + 4]
    except (struct.error, IndexError):
        raise SampleCorrupt(f"jpeg of {len(data)} bytes ends inside its header: truncated") from None
    pixels = height * width
    if kind not in _DECODABLE or precision != 8 or not pixels or components not in _COMPONENTS:
        _refuse_frame(kind, precision, height=height, width=width, components=components)
    if pixels > limits.pixels:
        limits.check_pixels(height, width)
    end = at + 10 + 3 * components
    factors = bytes(data[at + 11 : end : 3])
    if pixels * components > 512 * len(data) and kind not in _ARITHMETIC:
        _check_claim(len(data), pixels, factors)
    progressive, scans = kind in _PROGRESSIVE, 1
    if progressive or first != components:
        ids = bytes(data[at + 10 : end : 3])
        scans = count_scans(data, start, ids=ids, progressive=progressive, cap=limits.scans)
    limits.check_seconds(scans, pixels, len(data))
    subsampling = "grey" if components == 1 else _SUBSAMPLINGS.get(factors, "")
    regionable = subsampling != "" and components < 4
    return Header("jpeg", height, width, orientation, components, subsampling, progressive, scans, regionable)


def find_frame(data: Raw) -> tuple[int, int, int]:
    """Where the frame header lies, its marker, and the EXIF orientation found on the way.

    Raises `struct.error` when the data ends before, which a caller with only a head expects.
    """
    at, orientation, seen = 2, 1, False
    while True:
        mark, kind, length = _segment(data, at)
        if mark == 0xFF and kind in _SKIPPED and length >= 2:
            if kind == _APP1 and not seen and data[at + 4 : at + 10] == b"Exif\0\0":
                orientation, seen = read_orientation(bytes(data[at + 10 : at + 2 + length])), True
            at += 2 + length
        elif mark == 0xFF and kind in _FRAMES:
            return at, kind, orientation
        else:
            at = _pass_fill(at, mark, kind)


def _find_scan(data: Raw, at: int) -> int:
    """Where the first scan header lies, given where the frame header does."""
    at += 2 + _segment(data, at)[2]
    while True:
        mark, kind, length = _segment(data, at)
        if mark == 0xFF and kind in _SKIPPED and length >= 2:
            at += 2 + length
        elif mark == 0xFF and kind == _SOS:
            return at
        else:
            at = _pass_fill(at, mark, kind)


def _pass_fill(at: int, mark: int, kind: int) -> int:
    """The next byte, where two 0xff in a row pad a marker; anything else has no place in a header."""
    if mark == kind == 0xFF:
        return at + 1
    raise SampleCorrupt(f"jpeg has 0x{mark:02x}{kind:02x} at byte {at} of its header: damaged")


def _refuse_frame(kind: int, precision: int, *, height: int, width: int, components: int) -> None:
    if kind not in _DECODABLE:
        raise SampleCorrupt(f"jpeg of type SOF{kind - 0xC0} (lossless or hierarchical): convert it")
    if precision != 8:
        raise SampleCorrupt(f"jpeg of {precision} bits per sample: convert it to 8")
    raise SampleCorrupt(f"jpeg header says {height} x {width} pixels of {components} components: damaged")


def _check_claim(length: int, pixels: int, factors: bytes) -> None:
    """Refuse more blocks of 64 pixels than the file has bits: a Huffman code is one bit at the least."""
    wide = max(factor >> 4 for factor in factors) or 1
    tall = max(factor & 15 for factor in factors) or 1
    blocks = sum((factor >> 4) * (factor & 15) for factor in factors)
    needed = pixels * blocks // (512 * wide * tall)
    if needed > length:
        raise SampleCorrupt(
            f"jpeg header says {pixels} pixels, which take at least {needed} bytes; the file has {length}:"
            " truncated, or its header lies"
        )
