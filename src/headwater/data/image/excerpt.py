"""The cut inside a JPEG: a smaller JPEG that holds what a box needs, and decodes to exactly its pixels.

The cut copies DCT coefficients, so nothing is lost and no pixel is decoded where the file lies. Metadata
stays behind: whoever opens an excerpt must know the picture's size, its orientation and the box.
"""

from __future__ import annotations

import struct
from functools import cache

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from headwater.data.image import turbojpeg
from headwater.data.image.decoding import decode
from headwater.data.image.exif import turn
from headwater.data.image.header import Data, Header
from headwater.data.image.jpeg import find_frame
from headwater.data.image.limits import DEFAULT_LIMITS, Limits
from headwater.data.image.reading import read_header
from headwater.data.image.region import Box, Size, grow
from headwater.data.image.tables import has_wide_codes
from headwater.errors import SampleCorrupt, WrongUse

Pixels = NDArray[np.uint8]

FORMS = {
    "plain": (0, 0xC0),
    "optimised": (turbojpeg.OPTIMISED, 0xC0),
    "progressive": (turbojpeg.PROGRESSIVE, 0xC2),
    "arithmetic": (turbojpeg.ARITHMETIC, 0xC9),
    "progressive_arithmetic": (turbojpeg.PROGRESSIVE | turbojpeg.ARITHMETIC, 0xCA),
}
"""How an excerpt is coded, dearer and smaller from first to last: the library's options, the frame's mark."""
_EXTENDED = 0xC1
"""What the library calls a sequential file whose tables baseline does not allow."""


def excerpt(
    data: Data, header: Header, box: Box, *, form: str = "plain", oriented: bool = True
) -> bytes | None:
    """A JPEG from which `open_excerpt` has the pixels of `decode(data, header, box=box, ...)`.

    `box` is (top, left, height, width) in the coordinates of the decoded image. None where the file is
    of a kind that cannot be cut, or the library lacks the form, warns or fails: the whole file serves
    then, and its decoding says what is wrong. An excerpt may be larger than the file: compare.

    The plain form has one gap: a file forged so that its DC differences are in range but their sums are
    not. It may open to other pixels, or as corrupt. The other forms are exact or None there too.
    """
    if form not in FORMS:
        raise WrongUse(f"no form {form!r} of an excerpt; choose from {', '.join(FORMS)}")
    stored = _to_stored(box, header.size(oriented=oriented), header.orientation if oriented else 1)
    transformer = turbojpeg.transformer()
    if transformer is None or not header.subsampling:
        return None
    options, marker = FORMS[form]
    if not options and _may_overflow(data, header):
        if not transformer.optimises:
            return None
        options = turbojpeg.OPTIMISED  # its first pass looks at every coefficient
    whole = header.stored_height, header.stored_width
    top, left, bottom, right = grow(stored, whole, subsampling=header.subsampling)
    size = bottom - top, right - left
    made = transformer.cut(data, corner=(top, left), size=size, options=options, scans=header.scans)
    return made if made is not None and _read_frame(made) == (marker, *size) else None


def open_excerpt(
    payload: Data,
    box: Box,
    *,
    size: Size,
    orientation: int = 1,
    mode: str = "RGB",
    oriented: bool = True,
    limits: Limits = DEFAULT_LIMITS,
) -> Pixels:
    """The pixels of the box, from what `excerpt` made for it.

    `size` is that of the whole image in the coordinates of the box. Raises `SampleCorrupt` for what is
    damaged or no excerpt for this box, and `SampleTooLarge` for what is past a cap. As with `decode`,
    the result may be a view with negative strides.
    """
    turned = orientation if oriented else 1
    if not 1 <= turned <= 8:
        raise SampleCorrupt(f"excerpt came with orientation {turned}; exif knows 1 to 8")
    header, stored = read_header(payload, limits), _to_stored(box, size, turned)
    whole = size[::-1] if turned > 4 else size
    top, left = _find_corner(header, stored, whole)
    pixels = decode(payload, header, mode=mode, oriented=False)
    down, across = stored[0] - top, stored[1] - left
    return turn(pixels[down : down + stored[2], across : across + stored[3]], turned)


@cache
def available_forms() -> tuple[str, ...]:
    """The forms of which the library at hand makes excerpts with the right pixels, of a built-in image.

    TurboJPEG 2 makes some of them, and passes over what it does not know without a word.
    """
    noise = np.arange(48 * 80 * 3, dtype=np.uint32) * np.uint32(2654435761) >> np.uint32(24)
    data = simplejpeg.encode_jpeg(noise.astype(np.uint8).reshape(48, 80, 3), colorsubsampling="420")
    header, box = read_header(data), (17, 33, 14, 30)
    made = {form: excerpt(data, header, box, form=form) for form in FORMS}
    wanted = simplejpeg.decode_jpeg(data)[17:31, 33:63]
    right = [form for form, payload in made.items() if payload and _opens_to(payload, box, wanted)]
    return tuple(form for form in right if form != "optimised" or made[form] != made["plain"])


def _opens_to(payload: bytes, box: Box, wanted: Pixels) -> bool:
    try:
        return np.array_equal(open_excerpt(payload, box, size=(48, 80)), wanted)
    except SampleCorrupt:
        return False


def _may_overflow(data: Data, header: Header) -> bool:
    """Whether coefficients may be past what the plain form has codes for; the other forms are checked."""
    return header.progressive or header.scans > 1 or has_wide_codes(data)


def _to_stored(box: Box, size: Size, orientation: int) -> Box:
    """The box of an upright image of this size, in the coordinates of the pixels in the file."""
    top, left, height, width = box
    bottom, right = size
    if top < 0 or left < 0 or height < 1 or width < 1 or top + height > bottom or left + width > right:
        raise WrongUse(f"box {box} (top, left, height, width) is not inside an image of {bottom} x {right}")
    if orientation in (2, 3, 6, 7):
        left = right - left - width
    if orientation in (3, 4, 7, 8):
        top = bottom - top - height
    return (left, top, width, height) if orientation > 4 else (top, left, height, width)


def _read_frame(payload: bytes) -> tuple[int, int, int]:
    """Marker, height and width; the library moves a corner that it does not like without a word."""
    at, marker, _ = find_frame(payload)
    height, width = struct.unpack_from(">HH", payload, at + 5)
    return 0xC0 if marker == _EXTENDED else marker, height, width


def _find_corner(header: Header, box: Box, size: Size) -> tuple[int, int]:
    """Top and left of the excerpt in the whole image, both as stored."""
    if header.format != "jpeg" or not header.subsampling:
        raise SampleCorrupt(f"excerpt is of a kind that is never cut: {header}")
    top, left, bottom, right = grow(box, size, subsampling=header.subsampling)
    if (header.stored_height, header.stored_width) != (bottom - top, right - left):
        raise SampleCorrupt(
            f"excerpt for box {box} of an image of {size[0]} x {size[1]} must have {bottom - top} x"
            f" {right - left} pixels, it has {header.stored_height} x {header.stored_width}"
        )
    return top, left
