"""Huffman tables of a JPEG: whether they can code more than the standard's own tables can.

libjpeg's fast coder does not look: a coefficient without a code in its table goes out as other bits.
"""

from __future__ import annotations

import struct

from headwater.data.image.header import Data, view_bytes

_TABLES, _SCAN, _FILL = 0xC4, 0xDA, 0xFF
_ARITHMETIC = frozenset((0xC9, 0xCA))
_WIDE_DC = frozenset(range(12, 256))
_WIDE_AC = frozenset(symbol for symbol in range(256) if symbol & 15 > 10)

_segment = struct.Struct(">xBH").unpack_from


def has_wide_codes(data: Data) -> bool:
    """Whether the first scan can hold coefficients past the range of 8-bit images; True if there is none."""
    raw, at, kind = view_bytes(data), 2, 0
    while kind != _SCAN:
        if at + 4 > len(raw):
            return True
        kind, length = _segment(raw, at)
        if kind in _ARITHMETIC or (kind == _TABLES and _is_wide(bytes(raw[at + 4 : at + 2 + length]))):
            return True
        at += 1 if kind == _FILL else 2 + length
    return False


def _is_wide(tables: bytes) -> bool:
    """Tables lie in a row: class and number, counts of codes of 1 to 16 bits, symbols."""
    at = 0
    while at < len(tables):
        symbols = tables[at + 17 : at + 17 + sum(tables[at + 1 : at + 17])]
        if not (_WIDE_AC if tables[at] >> 4 else _WIDE_DC).isdisjoint(symbols):
            return True
        at += 17 + len(symbols)
    return False
