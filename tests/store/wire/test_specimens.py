"""The built-in files are what they are said to be, so that the comparison covers every kind of decode."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.data.image import decode, read_header, region_available
from headwater.data.image.region import decode_region
from headwater.store.wire.specimens import SPECIMENS
from pictures import open_pillow

KINDS = {
    "large_420": ("jpeg", 171, 189, 1, 3, "420", False),
    "odd_444": ("jpeg", 21, 27, 1, 3, "444", False),
    "odd_422": ("jpeg", 23, 37, 1, 3, "422", False),
    "odd_420": ("jpeg", 19, 45, 1, 3, "420", False),
    "progressive": ("jpeg", 33, 29, 1, 3, "420", True),
    "grey": ("jpeg", 31, 19, 1, 1, "grey", False),
    "turned": ("jpeg", 17, 29, 6, 3, "420", False),
    "cmyk": ("jpeg", 15, 18, 1, 4, "444", False),
    "alpha_png": ("png", 13, 11, 1, 4, "", False),
    "palette_png": ("png", 14, 17, 1, 3, "", False),
    "deep_png": ("png", 9, 12, 1, 1, "", False),
    "webp": ("webp", 27, 35, 1, 3, "", False),
    "lossless_webp": ("webp", 13, 11, 1, 4, "", False),
}


def test_they_are_few_bytes() -> None:
    assert set(SPECIMENS) == set(KINDS)
    assert sum(map(len, SPECIMENS.values())) < 8000


@pytest.mark.parametrize("name", KINDS)
def test_each_is_what_it_is_said_to_be_and_shows_something(name: str) -> None:
    header = read_header(SPECIMENS[name])
    size = header.format, header.stored_height, header.stored_width, header.orientation
    assert (*size, header.components, header.subsampling, header.progressive) == KINDS[name]
    pixels = decode(SPECIMENS[name], header)
    assert pixels.shape == (header.height, header.width, 3)
    assert len(np.unique(pixels)) >= 16


@pytest.mark.parametrize("name", sorted(set(KINDS) - {"turned", "cmyk", "deep_png"}))
def test_pillow_sees_the_same(name: str) -> None:
    pixels = decode(SPECIMENS[name], read_header(SPECIMENS[name]))
    assert np.array_equal(pixels, open_pillow(SPECIMENS[name]))


@pytest.mark.skipif(not region_available(), reason="no TurboJPEG 3 library here")
def test_a_box_of_the_large_one_is_decoded_alone() -> None:
    header = read_header(SPECIMENS["large_420"])
    assert decode_region(SPECIMENS["large_420"], header, (47, 49, 77, 91)) is not None
