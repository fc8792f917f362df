"""How an image was packed at its cut: all that opening it takes beside the bytes."""

from __future__ import annotations

import msgspec

from headwater.data import codecs
from headwater.data.codecs.base import Pixels, Shape
from headwater.data.codecs.excerpts import EXCERPTS
from headwater.data.image import Limits
from headwater.data.image.excerpt import open_excerpt
from headwater.data.image.header import Data
from headwater.errors import SampleCorrupt

Box = tuple[int, int, int, int]  # top, left, height, width


class Packing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The codec, and the shape of the image; for an excerpt of a file, the box that it was cut for, the size
    and orientation of the whole picture, and how the decoder was set."""

    codec: str
    shape: Shape
    box: Box | None = None
    size: tuple[int, int] = (0, 0)
    orientation: int = 1
    mode: str = "RGB"
    oriented: bool = True

    def open(self, payload: Data, limits: Limits) -> Pixels:
        """The image; raises `SampleCorrupt` or `SampleTooLarge` for what is none, or is past a cap."""
        if self.codec not in EXCERPTS:
            return codecs.decode(self.codec, payload, self.shape)
        if self.box is None:
            raise SampleCorrupt("an excerpt for a crop that does not fit")
        return open_excerpt(
            payload,
            self.box,
            size=self.size,
            orientation=self.orientation,
            mode=self.mode,
            oriented=self.oriented,
            limits=limits,
        )
