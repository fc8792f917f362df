from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageFile

from headwater.data.image import decode, read_header
from headwater.errors import SampleCorrupt, SampleTooLarge
from pictures import exif, open_pillow, photo, png, png_chunk, save

GREY, COLOUR, GREY_ALPHA, COLOUR_ALPHA = 0, 2, 4, 6
ADAM7 = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]


def pixels_of(data: bytes, mode: str = "RGB") -> np.ndarray:
    return decode(data, read_header(data), mode=mode)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("kind", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_kind_is_what_pillow_makes_of_it(kind: str, mode: str) -> None:
    image = Image.fromarray(photo(21, 34, channels=4), "RGBA").convert("RGB" if kind in "1P" else "RGBA")
    data = save(image.convert(kind), "PNG")
    found = pixels_of(data, mode)
    assert found.shape == (21, 34, 3 if mode == "RGB" else 1)
    assert np.array_equal(found, open_pillow(data, mode))
    assert found.flags.writeable


def test_a_palette_with_transparency_keeps_its_colours() -> None:
    palette = Image.fromarray(photo(21, 34)).quantize(16)
    data = save(palette, "PNG", transparency=bytes(range(0, 256, 16)))
    assert np.array_equal(pixels_of(data), np.asarray(palette.convert("RGB")))


@pytest.mark.parametrize(("kind", "channels"), [(GREY, 1), (COLOUR, 3), (GREY_ALPHA, 2), (COLOUR_ALPHA, 4)])
def test_sixteen_bits_give_their_high_byte(kind: int, channels: int) -> None:
    high = photo(9, 13, channels=channels)
    words = np.stack([high, 255 - high], axis=3).reshape(9, -1)
    data = png(np.pad(words, ((0, 0), (1, 0))).tobytes(), width=13, height=9, depth=16, kind=kind)
    colour = high[:, :, :3] if channels > 2 else np.repeat(high[:, :, :1], 3, axis=2)
    assert read_header(data).components == channels
    assert np.array_equal(pixels_of(data), colour)
    if channels < 3:
        assert np.array_equal(pixels_of(data, "L"), high[:, :, :1])


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_few_bits_of_grey_are_spread_over_the_range(depth: int) -> None:
    levels = np.arange(2**depth).repeat(8 // depth)[: 8 * (2**depth) // 8 or 1]
    packed = np.packbits((levels[:, None] >> np.arange(depth)[::-1] & 1).astype(np.uint8).ravel())
    data = png(b"\0" + packed.tobytes(), width=len(levels), height=1, depth=depth, kind=GREY)
    assert np.array_equal(pixels_of(data, "L")[0, :, 0], levels * 255 // (2**depth - 1))


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.fromarray(photo(20, 20, seed=seed)) for seed in range(3)]
    data = save(frames[0], "PNG", save_all=True, append_images=frames[1:])
    assert np.array_equal(pixels_of(data), np.asarray(frames[0]))


def test_orientation_before_the_pixels_counts_and_behind_them_does_not() -> None:
    tag = png_chunk(b"eXIf", exif(6).removeprefix(b"Exif\0\0"))
    data = save(photo(10, 20), "PNG")
    before, behind = data[:33] + tag + data[33:], data[:-12] + tag + data[-12:]
    assert read_header(before).size() == (20, 10)
    assert read_header(behind).size() == (10, 20)
    assert np.array_equal(pixels_of(before), np.rot90(photo(10, 20), -1))


def test_a_size_that_deflate_cannot_reach_is_a_lie() -> None:
    data = png(b"\0" * 1000, width=7000, height=7000, depth=8, kind=COLOUR)
    with pytest.raises(SampleCorrupt, match=r"at least \d+ bytes"):
        read_header(data)
    flat = save(np.zeros((3000, 3000, 3), np.uint8), "PNG", optimize=True)
    assert read_header(flat).size() == (3000, 3000)
    with pytest.raises(SampleTooLarge):
        read_header(png(b"\0", width=1 << 20, height=1 << 20, depth=1, kind=GREY))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.97])
def test_rows_that_never_come_are_truncation_though_pillow_says_nothing(share: float) -> None:
    rows = np.pad(photo(30, 30).reshape(30, -1), ((0, 0), (1, 0))).tobytes()
    data = png(rows[: int(len(rows) * share)], width=30, height=30, depth=8, kind=COLOUR)
    with pytest.raises(SampleCorrupt, match="truncated"):
        pixels_of(data)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (8, 8), (17, 9)])
@pytest.mark.parametrize("interlaced", [False, True])
def test_black_images_are_not_taken_for_truncated(height: int, width: int, interlaced: bool) -> None:
    size = 0
    for top, left, down, across in ADAM7 if interlaced else [(0, 0, 1, 1)]:
        columns = len(range(left, width, across))
        size += len(range(top, height, down)) * (1 + 3 * columns) if columns else 0
    data = png(b"\0" * size, width=width, height=height, depth=8, kind=COLOUR, interlaced=interlaced)
    assert not pixels_of(data).any()
    short = png(b"\0" * (size - 1), width=width, height=height, depth=8, kind=COLOUR, interlaced=interlaced)
    with pytest.raises(SampleCorrupt, match="truncated"):
        pixels_of(short)


def test_truncation_is_found_even_where_pillow_was_told_to_bear_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = save(photo(60, 60), "PNG")
    for length in range(8, len(data), len(data) // 20):
        with pytest.raises(SampleCorrupt, match="truncated"):
            pixels_of(data[:length])


@pytest.mark.parametrize(("depth", "kind"), [(3, GREY), (8, 1), (8, 5), (8, 7)])
def test_impossible_kinds_are_damage(depth: int, kind: int) -> None:
    with pytest.raises(SampleCorrupt, match="damaged"):
        read_header(png(b"\0\0", width=1, height=1, depth=depth, kind=kind))
