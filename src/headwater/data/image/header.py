"""What is known of an image before it is decoded, whatever its format."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Data = bytes | bytearray | memoryview | NDArray[Any]
"""The bytes of a file: anything with a contiguous buffer of bytes; none of these is copied."""


def view_bytes(data: Data) -> bytes | memoryview:
    """The same bytes as something to index, slice and unpack; Arrow's buffers come as signed char."""
    if type(data) is bytes:
        return data
    return (data.data if isinstance(data, np.ndarray) else memoryview(data)).cast("B")


class Header(msgspec.Struct, frozen=True, gc=False):
    """The facts of one image file that decide whether and how it is decoded.

    `height` and `width` are those of the upright image, after the EXIF orientation; `stored_height`
    and `stored_width` those of the pixels in the file. A struct, because a frozen dataclass takes
    2 us to make, and one is made for every sample.
    """

    format: str
    """jpeg, png or webp."""
    stored_height: int
    stored_width: int
    orientation: int = 1
    """EXIF: 1 to 8."""
    components: int = 3
    """1 grey, 2 grey and alpha, 3 colour, 4 colour and alpha (png, webp) or CMYK (jpeg)."""
    subsampling: str = ""
    """JPEG: 444, 422, 420, 440, 411, grey; empty where none of these, and for other formats."""
    progressive: bool = False
    scans: int = 1
    regionable: bool = False
    """A box of it can be decoded alone with the same pixels."""

    @property
    def height(self) -> int:
        return self.stored_width if self.orientation > 4 else self.stored_height

    @property
    def width(self) -> int:
        return self.stored_height if self.orientation > 4 else self.stored_width

    def size(self, oriented: bool = True) -> tuple[int, int]:
        """Height and width as `decode` gives them for the same `oriented`."""
        if oriented and self.orientation > 4:
            return self.stored_width, self.stored_height
        return self.stored_height, self.stored_width
