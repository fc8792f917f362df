from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image

from headwater.data.image import read_header
from headwater.errors import SampleCorrupt
from pictures import SUBSAMPLINGS, exif, jpeg, photo, progressive, resize_frame, save


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_baseline_header(subsampling: str) -> None:
    header = read_header(jpeg(photo(37, 53), subsampling))
    assert (header.format, header.height, header.width, header.components) == ("jpeg", 37, 53, 3)
    assert (header.subsampling, header.progressive, header.scans) == (subsampling, False, 1)
    assert header.regionable


def test_grey_and_cmyk() -> None:
    grey = read_header(jpeg(photo(8, 9, channels=1)))
    assert (grey.components, grey.subsampling, grey.regionable) == (1, "grey", True)
    cmyk = read_header(save(Image.fromarray(photo(8, 9)).convert("CMYK"), "JPEG"))
    assert (cmyk.components, cmyk.subsampling, cmyk.regionable) == (4, "444", False)


def test_progressive() -> None:
    header = read_header(progressive(photo(40, 40)))
    assert header.progressive
    assert header.scans == 10
    assert header.regionable


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_swaps_the_upright_size(orientation: int) -> None:
    header = read_header(save(photo(10, 20), "JPEG", exif=exif(orientation)))
    assert header.orientation == orientation
    assert header.size(oriented=False) == (header.stored_height, header.stored_width) == (10, 20)
    upright = (20, 10) if orientation > 4 else (10, 20)
    assert header.size() == (header.height, header.width) == upright


def test_fill_bytes_comments_and_large_profiles_are_passed() -> None:
    data = save(photo(10, 20), "JPEG", comment=b"\xff\xda\xff\xc0" * 50, icc_profile=b"p" * 150_000)
    padded = data[:2] + b"\xff\xff" + data[2:]
    assert read_header(padded).size() == read_header(data).size() == (10, 20)


def mark_frame(data: bytes, marker: int) -> bytes:
    at = data.index(b"\xff\xc0")
    return data[: at + 1] + bytes([marker]) + data[at + 2 :]


@pytest.mark.parametrize("marker", [0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD])
def test_lossless_and_hierarchical_are_named(marker: int) -> None:
    with pytest.raises(SampleCorrupt, match=f"SOF{marker - 0xC0} "):
        read_header(mark_frame(jpeg(photo(8, 8)), marker))


def test_twelve_bits_are_named() -> None:
    data = jpeg(photo(8, 8))
    at = data.index(b"\xff\xc0")
    with pytest.raises(SampleCorrupt, match="12 bits"):
        read_header(data[: at + 4] + b"\x0c" + data[at + 5 :])


def test_a_size_of_zero_is_damage() -> None:
    with pytest.raises(SampleCorrupt, match="0 x 8"):
        read_header(resize_frame(jpeg(photo(8, 8)), 0, 8))


def test_garbage_between_markers_is_damage() -> None:
    data = jpeg(photo(8, 8))
    second = 4 + struct.unpack_from(">H", data, 4)[0]
    with pytest.raises(SampleCorrupt, match="damaged"):
        read_header(data[:second] + b"\x00\x01" + data[second:])


def test_a_second_frame_header_is_damage() -> None:
    data = jpeg(photo(8, 8))
    at = data.index(b"\xff\xc0")
    with pytest.raises(SampleCorrupt, match="0xffc0"):
        read_header(data[: at + 19] + data[at : at + 19] + data[at + 19 :])


def test_more_blocks_than_bits_cannot_be() -> None:
    data = jpeg(photo(32, 32))
    with pytest.raises(SampleCorrupt, match=r"at least \d+ bytes"):
        read_header(resize_frame(data, 7000, 7000))


def test_an_evenly_coloured_image_is_not_taken_for_a_lie() -> None:
    flat = np.zeros((1000, 1500, 3), np.uint8)
    for data in (jpeg(flat, quality=10), jpeg(flat[:, :, :1], quality=1), progressive(flat)):
        assert read_header(data).size() == (1000, 1500)
