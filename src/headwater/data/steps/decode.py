"""Decoding as the first step of a chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headwater.data.image import MODES, decode, read_header
from headwater.data.steps.base import Image, Row, Step
from headwater.errors import WrongUse


@dataclass(frozen=True)
class Decode(Step):
    """The file's pixels, upright by its EXIF orientation unless `oriented` is False.

    `mode` is "RGB" (grey is replicated, alpha is dropped) or "L" (ITU-R 601 luma of the RGB pixels).
    """

    name: ClassVar[str] = "decode"
    exact: ClassVar[bool] = True
    steady: ClassVar[bool] = True

    mode: str = "RGB"
    oriented: bool = True

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise WrongUse(f"mode {self.mode!r} is not one of {', '.join(MODES)}")
        if not isinstance(self.oriented, bool):
            raise WrongUse(f"oriented={self.oriented!r} is neither True nor False")

    def apply(self, image: Image, row: Row) -> Image:
        """Decode a file, given as its bytes in a one-dimensional uint8 array (or any buffer)."""
        return decode(image, read_header(image), mode=self.mode, oriented=self.oriented)
