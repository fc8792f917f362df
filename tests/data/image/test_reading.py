from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from headwater.data.image import decode, read_header, read_sizes
from headwater.errors import SampleCorrupt
from pictures import SUBSAMPLINGS, exif, jpeg, photo, progressive, save

STRANGERS = {
    "empty": b"",
    "gif": save(Image.fromarray(photo(8, 8)), "GIF"),
    "tiff": save(Image.fromarray(photo(8, 8)), "TIFF"),
    "bmp": save(Image.fromarray(photo(8, 8)), "BMP"),
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "html": b"<!DOCTYPE html><title>404</title>",
    "heif": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
    "jpeg xl": b"\xff\x0a\xfa\x1f",
    "text": b"not found, sorry",
    "zeros": b"\0" * 5000,
    "bytes 01 02": b"\x01\x02\x03",
}


@pytest.mark.parametrize("name", STRANGERS)
def test_what_is_no_image_is_named(name: str) -> None:
    with pytest.raises(SampleCorrupt, match=rf"{name}.*headwater reads jpeg, png and webp"):
        read_header(STRANGERS[name])


@pytest.mark.parametrize("data", [b"\xff", b"\xff\xd8\xff", b"\x89PNG", b"RIFF\0\0\0\0WEBP", b"RIFF"])
def test_a_few_bytes_are_an_error_not_a_crash(data: bytes) -> None:
    with pytest.raises(SampleCorrupt):
        read_header(data)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_any_buffer_gives_the_same(format: str) -> None:
    data = save(photo(30, 40), format)
    wanted = decode(data, read_header(data))
    arrow = memoryview(pa.py_buffer(data))
    for form in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8), arrow):
        header = read_header(form)
        assert header == read_header(data)
        assert np.array_equal(decode(form, header), wanted)


def test_sizes_from_heads() -> None:
    pixels = photo(30, 50)
    files = [jpeg(pixels, kind) for kind in SUBSAMPLINGS] + [progressive(pixels)]
    files += [save(pixels, format) for format in ("PNG", "WEBP", "JPEG")]
    heads = [data[:700] for data in files]
    assert read_sizes(heads).tolist() == [[30, 50]] * len(heads)
    assert read_sizes([np.frombuffer(head, np.uint8) for head in heads]).tolist() == [[30, 50]] * len(heads)


def test_sizes_follow_the_orientation() -> None:
    data = save(photo(30, 50), "JPEG", exif=exif(8))
    assert read_sizes([data[:700]]).tolist() == [[50, 30]]
    assert read_sizes([data[:700]], oriented=False).tolist() == [[30, 50]]


def test_a_short_head_or_a_stranger_has_size_zero() -> None:
    far = save(photo(30, 50), "JPEG", icc_profile=b"p" * 5000)
    assert read_sizes([far[:4096], far[:8000], b"", b"hello", jpeg(photo(9, 9))[:40]]).tolist() == [
        [0, 0],
        [30, 50],
        [0, 0],
        [0, 0],
        [0, 0],
    ]
    assert read_sizes([]).shape == (0, 2)


def test_sizes_agree_with_headers_on_every_prefix() -> None:
    for data in (save(photo(30, 50), "JPEG", exif=exif(6)), save(photo(50, 30), "PNG"), jpeg(photo(50, 30))):
        sizes = read_sizes([data[:length] for length in range(0, len(data), 7)])
        assert set(map(tuple, sizes.tolist())) == {(0, 0), (50, 30)}
        assert tuple(sizes[-1]) == read_header(data).size()
