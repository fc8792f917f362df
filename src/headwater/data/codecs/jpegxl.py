"""Lossless JPEG XL, by libjxl: the fewest bytes. It comes with the extra `codecs` and is loaded on first use.

A 224 x 224 crop of a photo, 150 kB, becomes 66 kB at effort 1 and 56 kB at effort 3, which takes ten times
as long to pack and three times as long to unpack.
"""

from __future__ import annotations

from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np

from headwater.data.codecs import codestream
from headwater.data.codecs.base import Codec, Pixels, Shape
from headwater.errors import SampleCorrupt, WrongUse

_EFFORTS = {"jxl1": 1, "jxl3": 3}
_QUICK = 1
_LONGEST_EDGE = 2048
"""For more than effort 1: beyond it libjxl permutes the sections, which cannot be checked before decoding,
and a large photo would keep a store's worker busy until it is taken for hung."""
_SAMPLE = 1 << 14  # pixels whose colours are counted
_MOST_PALETTE = 8 * 512  # colours


def find_codecs() -> dict[str, Codec]:
    """Both efforts, where the library is installed: looked for, but not imported."""
    spec = find_spec("imagecodecs")
    folders = spec.submodule_search_locations if spec else None
    # A build of the package may lack any of its codecs.
    if not any(any(Path(folder).glob("_jpegxl.*")) for folder in folders or ()):
        return {}
    return {name: Codec(partial(_pack, effort=effort), _unpack, _load) for name, effort in _EFFORTS.items()}


@cache
def _load() -> ModuleType:
    import imagecodecs

    _ = imagecodecs.jpegxl_encode  # the package imports each codec when it is first named
    return imagecodecs


def _pack(pixels: Pixels, *, effort: int) -> memoryview:
    if pixels.shape[2] > 4:
        raise WrongUse(f"JPEG XL packs 1 to 4 channels; this has {pixels.shape[2]}")
    pixels = np.ascontiguousarray(pixels)
    if max(pixels.shape[:2]) > _LONGEST_EDGE:
        effort = _QUICK
    packed = _encode(pixels, effort)
    if effort == _QUICK and not _has_many_colours(pixels) and not _is_exact(packed, pixels):
        packed = _encode(pixels, _QUICK + 1)
    return memoryview(packed)


def _encode(pixels: Pixels, effort: int) -> bytes:
    height, width, channels = pixels.shape
    packed: bytes = _load().jpegxl_encode(
        _squeeze(pixels), effort=effort, lossless=True, planar=False, usecontainer=False, numthreads=1
    )
    try:
        codestream.check(packed, (height, width, channels))
    except codestream.NotThis as error:
        raise WrongUse(f"this libjxl packs pixels of {pixels.shape} in a way not known: {error}") from error
    return packed


def _has_many_colours(pixels: Pixels) -> bool:
    """True only if effort 1 cannot take the picture for one with a palette, and so is exact.

    libjxl 0.11 loses a colour (its issue 4287) if two that share one of its slots are within the same
    eight pixels. It makes a palette of at most 512 slots, so of at most eight times as many colours.
    """
    height, width, channels = pixels.shape
    if channels < 3:
        return False
    sample = pixels.reshape(-1, channels)[:: 1 + height * width // _SAMPLE]
    # Any function of a colour will do: it cannot have more values than there are colours.
    mixed = sample[:, 0].astype(np.uint16) << 8
    mixed += sample[:, 1] * np.uint16(5) + sample[:, 2] * np.uint16(1021)
    seen = np.zeros(1 << 16, np.bool_)
    seen[mixed] = True
    return int(np.count_nonzero(seen)) > _MOST_PALETTE


def _is_exact(packed: bytes, pixels: Pixels) -> bool:
    height, width, channels = pixels.shape
    try:
        return np.array_equal(_unpack(packed, (height, width, channels)), pixels)
    except SampleCorrupt:
        return False


def _unpack(data: bytes | memoryview, shape: Shape) -> Pixels:
    try:
        codestream.check(data, shape)
        pixels = np.empty(shape, np.uint8)
        _load().jpegxl_decode(data, index=0, keeporientation=True, numthreads=1, out=_squeeze(pixels))
    except (codestream.NotThis, RuntimeError, ValueError) as error:
        raise SampleCorrupt(f"{len(data)} bytes of JPEG XL are no pixels of {shape}: {error}") from error
    return pixels


def _squeeze(pixels: Pixels) -> Pixels:
    """The library has no axis for a single channel."""
    return pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
