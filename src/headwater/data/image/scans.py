"""Scans of a progressive or multi-scan JPEG: how many there are, and whether they bring every coefficient.

libjpeg decodes a progressive file without its last scans silently, smoothed across blocks. Such a
file is truncated, and refused like any other truncated file.
"""

from __future__ import annotations

import re

from headwater.errors import SampleCorrupt, SampleTooLarge

_SOS, _EOI = 0xDA, 0xD9
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")
"""One that begins a segment or ends the image; in coded data 0xff is escaped, or marks a restart."""
_ABSENT = 0xFF


def count_scans(data: bytes | memoryview, start: int, *, ids: bytes, progressive: bool, cap: int) -> int:
    """The number of scans from the first scan header at `start`, after checking that they are complete."""
    low_bits = {component: bytearray([_ABSENT]) * 64 for component in ids}
    scans = 0
    while start >= 0:
        scans += 1
        if scans > cap:
            raise SampleTooLarge(f"jpeg of more than {cap} scans is past the cap; raise Limits.scans")
        _apply_scan(data, start, low_bits, progressive=progressive)
        start = _next_scan(data, start)
    for component, bits in low_bits.items():
        if any(bits):
            raise SampleCorrupt(
                f"jpeg of {scans} scans lacks {64 - bits.count(0)} of 64 coefficients of component"
                f" {component} in full precision: truncated"
            )
    return scans


def _next_scan(data: bytes | memoryview, at: int) -> int:
    """The next scan header before the end of the image; what follows it (a preview, a film) is not ours.

    From the segment at `at` to the next, as libjpeg goes: a comment may hold what looks like a marker.
    """
    while True:
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        found = _MARKER.search(data, at + 2 + max(length, 2))
        if found is None or data[found.start() + 1] == _EOI:
            return -1
        at = found.start()
        if data[at + 1] == _SOS:
            return at


def _apply_scan(
    data: bytes | memoryview, at: int, low_bits: dict[int, bytearray], *, progressive: bool
) -> None:
    """Note which coefficients this scan brings, and down to which bit; the decoder judges a malformed one."""
    count = data[at + 4] if at + 4 < len(data) else 0
    fields = bytes(data[at + 5 : at + 8 + 2 * count])
    if len(fields) < 3 + 2 * count:
        return
    first, last, approximation = fields[-3:] if progressive else (0, 63, 0)
    if first <= last <= 63:
        for component in fields[: 2 * count : 2]:
            if component in low_bits:
                low_bits[component][first : last + 1] = bytes([approximation & 15]) * (last - first + 1)
