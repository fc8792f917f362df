from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from headwater.data.image import decode, read_header
from headwater.errors import SampleCorrupt, WrongUse
from pictures import SUBSAMPLINGS, exif, jpeg, open_pillow, photo, progressive, save


@pytest.mark.parametrize("size", [(1, 1), (3, 4), (37, 53), (64, 64), (8, 17)])
@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_colour_is_what_pillow_decodes(subsampling: str, size: tuple[int, int]) -> None:
    data = jpeg(photo(*size), subsampling)
    found = decode(data, read_header(data))
    assert found.dtype == np.uint8
    assert np.array_equal(found, open_pillow(data))


@pytest.mark.parametrize(("write", "channels"), [(progressive, 3), (jpeg, 3), (jpeg, 1)])
def test_grey_is_pillows_luma_of_the_colours(write: Callable[..., bytes], channels: int) -> None:
    data = write(photo(45, 61, channels=channels))
    found = decode(data, read_header(data), mode="L")
    assert found.shape == (45, 61, 1)
    assert np.array_equal(found, open_pillow(data, "L"))


def test_a_grey_file_is_replicated() -> None:
    data = jpeg(photo(45, 61, channels=1))
    found = decode(data, read_header(data))
    assert np.array_equal(found, open_pillow(data))
    assert np.array_equal(found[:, :, 0], found[:, :, 2])


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("subsampling", [0, 2])
def test_cmyk_is_what_pillow_makes_of_it(mode: str, subsampling: int) -> None:
    data = save(Image.fromarray(photo(45, 61)).convert("CMYK"), "JPEG", subsampling=subsampling)
    assert np.array_equal(decode(data, read_header(data), mode=mode), open_pillow(data, mode))


def test_rgb_without_a_colour_transform() -> None:
    data = save(photo(45, 61), "JPEG", keep_rgb=True)
    assert np.array_equal(decode(data, read_header(data)), open_pillow(data))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_unless_asked_not_to(orientation: int) -> None:
    data = save(photo(24, 40), "JPEG", exif=exif(orientation))
    header = read_header(data)
    with Image.open(io.BytesIO(data)) as image:
        upright = np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(decode(data, header), upright)
    assert decode(data, header).shape[:2] == header.size()
    assert np.array_equal(decode(data, header, oriented=False), open_pillow(data))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("format", ["JPEG", "WEBP"])
def test_a_box_is_that_part_of_the_whole(format: str, orientation: int, mode: str) -> None:
    data = save(photo(200, 300), format, exif=exif(orientation))
    header = read_header(data)
    for oriented in (True, False):
        whole = decode(data, header, mode=mode, oriented=oriented)
        full = (0, 0, *whole.shape[:2])
        for top, left, height, width in [(0, 0, 1, 1), (31, 57, 40, 33), (199, 199, 1, 1), full]:
            part = decode(data, header, mode=mode, oriented=oriented, box=(top, left, height, width))
            assert np.array_equal(part, whole[top : top + height, left : left + width])


@pytest.mark.parametrize("box", [(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 0, 5), (0, 0, 5, 0), (6, 0, 5, 5)])
def test_a_box_outside_is_wrong_use(box: tuple[int, int, int, int]) -> None:
    data = jpeg(photo(10, 20))
    with pytest.raises(WrongUse, match="inside an image of 10 x 20"):
        decode(data, read_header(data), box=box)


def test_a_header_of_another_file_is_noticed() -> None:
    for format in ("JPEG", "PNG"):
        with pytest.raises(SampleCorrupt, match="differs from its header"):
            decode(save(photo(9, 9), format), read_header(save(photo(10, 10), format)))


@pytest.mark.parametrize("size", [(1, 65500), (65500, 1)])
def test_the_longest_sides(size: tuple[int, int]) -> None:
    data = jpeg(photo(*size), "444")
    assert decode(data, read_header(data)).shape == (*size, 3)


DIGEST = """
import hashlib, sys
from headwater.data.image import decode, read_header
digest = hashlib.sha256()
for path in sys.argv[1:]:
    data = open(path, "rb").read()
    header = read_header(data)
    digest.update(decode(data, header).tobytes())
    digest.update(decode(data, header, box=(33, 41, 60, 70)).tobytes())
print(digest.hexdigest())
"""


def test_the_same_bytes_without_simd(tmp_path: Path) -> None:
    kinds = {name: jpeg(photo(203, 301, seed=3), name) for name in SUBSAMPLINGS}
    kinds["progressive"] = progressive(photo(203, 301, seed=4))
    for name, data in kinds.items():
        (tmp_path / name).write_bytes(data)
    command = [sys.executable, "-c", DIGEST, *(str(tmp_path / name) for name in kinds)]
    digests = set()
    for extra in ({}, {"JSIMD_FORCENONE": "1"}):
        environment = {**os.environ, **extra}
        digests.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert len(digests) == 1
