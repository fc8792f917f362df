"""The header of a JPEG XL codestream (ISO/IEC 18181-1), read before a decoder sees it.

Accepted is what packs 8 bit pixels without loss and nothing else: one still frame of the stated size, coded
in integers, without colour transform to XYB, filters, patches, noise, blending, crop, preview or profile. So
the decoder has nothing to allocate for but this size, and nothing to compute that differs between CPUs.
"""

from __future__ import annotations

from functools import cache
from itertools import repeat

from headwater.data.codecs.base import Shape

_SIGNATURE = b"\xff\x0a"
_MOST_HEADER = 64  # bytes before the table of sections, more than these headers can take
_SIZES = ((1, 9), (1, 13), (1, 18), (1, 30))  # what is added, and the bits that it is added to
_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
_SECTION_SIZES = ((0, 10), (1024, 14), (17408, 22), (4211712, 30))
_LEAST_SECTION_BITS = 12  # that a section takes in the table


class NotThis(Exception):
    """The codestream is not what `check` accepts."""


class _Bits:
    """Reads numbers from the lowest bit of each byte upwards; zeros follow the end."""

    def __init__(self, data: bytes | memoryview, place: int) -> None:
        self._value, self.place = int.from_bytes(data, "little"), place

    def take(self, count: int) -> int:
        value = self._value >> self.place & (1 << count) - 1
        self.place += count
        return value

    def choose(self, kinds: tuple[tuple[int, int], ...]) -> int:
        """A number in the one of four sizes that the next two bits say."""
        base, count = kinds[self.take(2)]
        return base + self.take(count)

    def expect(self, bits: str, what: str) -> None:
        """Pass over exactly these bits, in the order of the stream."""
        bits = bits.replace(" ", "")
        if self.take(len(bits)) != int(bits[::-1], 2):
            raise NotThis(f"its {what} is none of lossless 8 bit pixels")

    def align(self) -> None:
        if self.take(-self.place % 8):
            raise NotThis("bits are set between its parts")


def check(data: bytes | memoryview, shape: Shape) -> None:
    """Raises `NotThis` unless the data is one codestream of this shape, by its headers and its length."""
    if data[:2] != _SIGNATURE:
        raise NotThis("it does not begin like a codestream")
    bits = _Bits(data[:_MOST_HEADER], 16)
    size = _read_size(bits)
    if size != shape[:2]:
        raise NotThis(f"it states {size[0]} x {size[1]} pixels")
    channels = shape[2]
    bits.expect(_metadata(channels), "description")
    bits.align()
    before, after = _frame(channels)
    bits.expect(before, "frame")
    group = 128 << bits.take(2)
    bits.expect(after, "frame")
    bits.align()
    _check_length(data, bits.place, _count_sections(shape, group))


def _read_size(bits: _Bits) -> tuple[int, int]:
    small = bits.take(1)
    height = 8 * (bits.take(5) + 1) if small else bits.choose(_SIZES)
    ratio = bits.take(3)
    if ratio:
        wide, high = _RATIOS[ratio - 1]
        return height, height * wide // high
    return height, 8 * (bits.take(5) + 1) if small else bits.choose(_SIZES)


@cache
def _metadata(channels: int) -> str:
    """The image's description, field by field; a number of several bits has its lowest bit first."""
    if channels not in (1, 2, 3, 4):
        raise NotThis(f"it cannot have {channels} channels")
    depth = "0 00 1"  # integers, of 8 bits, that fit into 16 while they are computed
    extra = "00" if channels % 2 else "10 1"  # no further channel, or one of 8 bits: alpha
    colour = "1" if channels > 2 else "0 0 10 10 0 01 1101 10"  # sRGB; grey, D65, its transfer, relative
    # Not the default, no further fields; not XYB; no extensions; the default upsampling.
    return f"0 0 {depth} {extra} 0 {colour} 00 1"


@cache
def _frame(channels: int) -> tuple[str, str]:
    """The frame's header before and after the size of its groups, and that its sections are in order."""
    extra = "" if channels % 2 else "00"
    # Not the default, a regular frame, modular, no flags, not YCbCr, not upsampled.
    before = f"0 00 1 00 0 00 {extra}"
    # One pass, no crop, replaces all; the last, no name; no filter (4 fields), no extensions; no permutation.
    after = f"00 0 00 {extra} 1 00 0 0 00 00 00 0"
    return before, after


def _count_sections(shape: Shape, group: int) -> int:
    def tiles(edge: int) -> int:
        return -(-shape[0] // edge) * -(-shape[1] // edge)

    return 1 if tiles(group) == 1 else 2 + tiles(8 * group) + tiles(group)


def _check_length(data: bytes | memoryview, place: int, sections: int) -> None:
    """The table of sections begins at bit `place`; with it and what it lists, the data must end."""
    if place + sections * _LEAST_SECTION_BITS > 8 * len(data):
        raise NotThis(f"{sections} sections do not fit")
    bits = _Bits(data[: place // 8 + 4 * sections], place)
    listed = sum(bits.choose(kinds) for kinds in repeat(_SECTION_SIZES, sections))
    bits.align()
    if bits.place // 8 + listed != len(data):
        raise NotThis(f"its headers take {bits.place // 8} bytes and list {listed}: truncated, or too long")
