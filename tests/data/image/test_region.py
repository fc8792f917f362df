"""A part decoded alone has the pixels of the whole, whatever the file."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from headwater.data.image import decode, read_header, region_available, turbojpeg
from headwater.data.image.header import Header
from headwater.data.image.region import Box, decode_region, grow
from headwater.errors import SampleCorrupt
from pictures import SUBSAMPLINGS, jpeg, photo, progressive, save

pytestmark = pytest.mark.skipif(turbojpeg.load() is None, reason="no library with the TurboJPEG 3 calls")


def boxes(height: int, width: int, *, count: int, seed: int) -> Iterator[Box]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        tall, wide = int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))
        top, left = int(rng.integers(0, height - tall + 1)), int(rng.integers(0, width - wide + 1))
        yield top, left, tall, wide


def count_wrong(data: bytes, *, count: int, seed: int = 0) -> int:
    header = read_header(data)
    whole = simplejpeg.decode_jpeg(data, "GRAY" if header.components == 1 else "RGB")
    wrong = 0
    for box in boxes(*whole.shape[:2], count=count, seed=seed):
        part = decode_region(data, header, box, always=True)
        wanted = whole[box[0] : box[0] + box[2], box[1] : box[1] + box[3]]
        wrong += part is None or not np.array_equal(part, wanted)
    return wrong


@pytest.mark.parametrize(
    ("subsampling", "box", "area"),
    [
        ("444", (16, 16, 16, 16), (16, 16, 32, 32)),
        ("grey", (15, 16, 2, 17), (8, 16, 24, 40)),
        ("420", (17, 17, 14, 14), (16, 16, 32, 32)),
        ("420", (16, 17, 14, 15), (0, 16, 32, 48)),
        ("422", (16, 16, 16, 16), (16, 0, 32, 48)),
        ("440", (16, 16, 16, 16), (0, 16, 48, 32)),
        ("411", (16, 32, 16, 32), (16, 32, 32, 64)),
        ("420", (90, 90, 10, 10), (80, 80, 100, 100)),
        ("420", (40, 98, 8, 2), (32, 80, 64, 100)),
        ("444", (40, 98, 8, 2), (40, 96, 48, 100)),
    ],
)
def test_the_margin_is_one_pixel_where_chroma_is_halved(subsampling: str, box: Box, area: Box) -> None:
    assert grow(box, (100, 100), subsampling=subsampling) == area


def test_the_library_gives_simplejpegs_pixels() -> None:
    assert region_available()


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_baseline(subsampling: str) -> None:
    for seed, size in enumerate([(97, 131), (64, 96), (33, 47), (130, 77)]):
        assert count_wrong(jpeg(photo(*size, seed=seed), subsampling), count=25, seed=seed) == 0


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_tiny_images_and_narrow_right_edges(subsampling: str) -> None:
    for height in (1, 2, 8, 15, 17, 20):
        for width in (*range(1, 8), *range(16, 22), *range(32, 38), 65, 66, 67, 68):
            data = jpeg(photo(height, width, seed=width), subsampling)
            assert count_wrong(data, count=5, seed=height * width) == 0


@pytest.mark.parametrize("width", range(33, 38))
@pytest.mark.parametrize("subsampling", ["420", "422"])
def test_the_last_columns_alone(subsampling: str, width: int) -> None:
    data = jpeg(photo(40, width), subsampling)
    header, whole = read_header(data), simplejpeg.decode_jpeg(data)
    for columns in range(1, width - 31):
        part = decode_region(data, header, (9, width - columns, 20, columns), always=True)
        assert part is not None
        assert np.array_equal(part, whole[9:29, width - columns :])


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("option", ["restart_marker_blocks", "restart_marker_rows", "optimize"])
@pytest.mark.parametrize("is_progressive", [False, True])
def test_restart_markers_and_progressive(subsampling: str, option: str, is_progressive: bool) -> None:
    options = {option: 1, "subsampling": subsampling, "progressive": is_progressive}
    data = save(photo(75, 93), "JPEG", quality=88, **options)
    assert count_wrong(data, count=25) == 0


def test_grey_and_grey_with_factors_of_two() -> None:
    for data in (jpeg(photo(61, 83, channels=1)), progressive(photo(61, 83, channels=1))):
        assert count_wrong(data, count=40) == 0
        at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
        assert count_wrong(data[: at + 11] + b"\x22" + data[at + 12 :], count=40) == 0


def test_rgb_without_a_colour_transform() -> None:
    assert count_wrong(save(photo(61, 83), "JPEG", keep_rgb=True), count=30) == 0


def test_it_is_used_when_it_pays_and_only_then() -> None:
    data = jpeg(photo(320, 480))
    header = read_header(data)
    assert decode_region(data, header, (100, 100, 100, 100)) is not None
    assert decode_region(data, header, (0, 0, 300, 440)) is None
    small = jpeg(photo(32, 32))
    assert decode_region(small, read_header(small), (4, 4, 8, 8)) is None


def test_a_kind_that_cannot_be_cut_is_not() -> None:
    data = save(Image.fromarray(photo(320, 480)).convert("CMYK"), "JPEG")
    header = read_header(data)
    assert decode_region(data, header, (10, 10, 20, 20), always=True) is None
    assert np.array_equal(decode(data, header, box=(10, 10, 20, 20)), decode(data, header)[10:30, 10:30])


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("is_progressive", [False, True])
def test_truncation_below_the_box_is_still_an_error(is_progressive: bool, share: float) -> None:
    data = save(photo(320, 480), "JPEG", progressive=is_progressive)
    header, cut = read_header(data), data[: int(len(data) * share)]
    assert decode_region(cut, header, (0, 0, 50, 50)) is None
    with pytest.raises(SampleCorrupt):
        decode(cut, header, box=(0, 0, 50, 50))


def test_padding_after_the_end_is_borne() -> None:
    data = jpeg(photo(320, 480))
    header = read_header(data)
    assert decode_region(data + b"\0" * 100, header, (0, 0, 50, 50)) is not None


def test_a_header_that_differs_from_the_file_is_refused() -> None:
    data = jpeg(photo(320, 480))
    lie = Header("jpeg", 321, 480, subsampling="420", regionable=True)
    assert decode_region(data, lie, (0, 0, 50, 50)) is None


def test_threads_do_not_disturb_each_other() -> None:
    data = jpeg(photo(320, 480))
    header, whole, right = read_header(data), simplejpeg.decode_jpeg(data), []

    def work(seed: int) -> None:
        start.wait()
        for box in boxes(320, 480, count=20, seed=seed):
            part = decode_region(data, header, box, always=True)
            wanted = whole[box[0] : box[0] + box[2], box[1] : box[1] + box[3]]
            right.append(part is not None and np.array_equal(part, wanted))

    start = threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 80
