from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from headwater.data.image import decode, read_header, read_sizes
from headwater.errors import SampleCorrupt
from pictures import exif, open_pillow, photo, save


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("channels", [3, 4])
def test_lossy_lossless_and_alpha(channels: int, lossless: bool, mode: str) -> None:
    data = save(photo(31, 47, channels=channels), "WEBP", lossless=lossless)
    header = read_header(data)
    assert (header.format, header.size(), header.components) == ("webp", (31, 47), channels)
    assert not header.regionable
    found = decode(data, header, mode=mode)
    assert np.array_equal(found, open_pillow(data, mode))
    if lossless and channels == 3 and mode == "RGB":
        assert np.array_equal(found, photo(31, 47))


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.fromarray(photo(20, 20, seed=seed)) for seed in range(3)]
    data = save(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert np.array_equal(decode(data, read_header(data)), photo(20, 20, seed=0))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_at_the_end_of_the_file(orientation: int) -> None:
    data = save(photo(10, 20), "WEBP", lossless=True, exif=exif(orientation))
    header = read_header(data)
    assert header.orientation == orientation
    assert decode(data, header).shape[:2] == header.size() == ((20, 10) if orientation > 4 else (10, 20))
    assert read_sizes([data]).tolist() == [[0, 0]]
    assert read_sizes([data], oriented=False).tolist() == [[10, 20]]


def test_shorter_than_it_says_is_truncation() -> None:
    data = save(photo(60, 60), "WEBP")
    for length in range(12, len(data), len(data) // 20):
        with pytest.raises(SampleCorrupt, match="truncated"):
            read_header(data[:length])


def test_a_chunk_that_is_no_image_is_damage() -> None:
    data = save(photo(20, 20), "WEBP")
    with pytest.raises(SampleCorrupt, match="XXXX"):
        read_header(data[:12] + b"XXXX" + data[16:])
