"""Damaged and hostile files: a sample's error, never a crash, a hang, or memory past the caps."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from headwater.data.image import Limits, decode, read_header
from headwater.errors import SampleCorrupt, SampleError
from pictures import exif, jpeg, photo, png_chunk, progressive, resize_frame, save

Writer = Callable[..., bytes]

FILES = {
    "baseline": jpeg(photo(180, 200), "420"),
    "progressive": progressive(photo(70, 90)),
    "grey": jpeg(photo(70, 90, channels=1)),
    "cmyk": save(Image.fromarray(photo(70, 90)).convert("CMYK"), "JPEG"),
    "turned": save(photo(70, 90), "JPEG", exif=exif(6)),
    "png": save(photo(40, 50), "PNG"),
    "palette": save(Image.fromarray(photo(40, 50)).quantize(), "PNG"),
    "webp": save(photo(70, 90), "WEBP"),
    "lossless": save(photo(40, 50, channels=4), "WEBP", lossless=True, exif=exif(6)),
}


@pytest.mark.parametrize("name", FILES)
def test_truncated_anywhere_is_corrupt(name: str) -> None:
    data = FILES[name]
    for percent in range(0, 100, 5):
        cut = data[: len(data) * percent // 100]
        with pytest.raises(SampleCorrupt):
            decode(cut, read_header(cut))


@pytest.mark.parametrize("name", ["baseline", "progressive", "grey"])
def test_truncated_and_filled_up_with_zeros_is_corrupt(name: str) -> None:
    data = FILES[name]
    for percent in range(5, 100, 5):
        kept = data[: len(data) * percent // 100]
        with pytest.raises(SampleCorrupt):
            decode(kept.ljust(len(data), b"\0"), read_header(kept.ljust(len(data), b"\0")))


def mutations(data: bytes, *, count: int, seed: int) -> list[bytes]:
    """Bytes changed, mostly in the header; ranges cut out or doubled."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        changed = bytearray(data)
        for _ in range(int(rng.integers(1, 6))):
            reach = len(changed) if number % 3 == 0 else min(700, len(changed))
            value = rng.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF, rng.integers(256)])
            changed[int(rng.integers(2, reach))] = int(value)
        if number % 4 == 3:
            start, length = int(rng.integers(2, len(changed))), int(rng.integers(1, 40))
            changed[start : start + length] = changed[start : start + length] * int(rng.integers(0, 3))
        made.append(bytes(changed))
    return made


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", FILES)
def test_mutated_files_are_refused_or_decoded_as_their_header_says(name: str, count: int) -> None:
    outcomes = {"refused": 0, "decoded": 0}
    for data in mutations(FILES[name], count=count, seed=len(name)):
        try:
            header = read_header(data, Limits(pixels=4_000_000))
            pixels = decode(data, header)
        except SampleError:
            outcomes["refused"] += 1
            continue
        assert pixels.shape == (*header.size(), 3)
        top, left = header.height // 3, header.width // 3
        part = decode(data, header, box=(top, left, top + 1, left + 1))
        assert np.array_equal(part, pixels[top : 2 * top + 1, left : 2 * left + 1])
        outcomes["decoded"] += 1
    assert outcomes["refused"] > 20


@pytest.mark.parametrize("write", [jpeg, progressive])
@pytest.mark.parametrize("size", [(7000, 9000), (60_000, 1000), (4000, 4000)])
def test_a_header_that_lies_is_refused_before_memory_is_taken(write: Writer, size: tuple[int, int]) -> None:
    with pytest.raises(SampleCorrupt, match="lies"):
        read_header(resize_frame(write(photo(64, 64)), *size))


def test_a_text_bomb_in_a_png_is_refused() -> None:
    data = save(photo(20, 20), "PNG")
    bomb = png_chunk(b"zTXt", b"k\0\0" + zlib.compress(b"\0" * 80_000_000, 9))
    with pytest.raises(SampleCorrupt):
        decode(data[:33] + bomb + data[33:], read_header(data[:33] + bomb + data[33:]))


MEMORY = """
import resource, sys
from headwater.data.image import Limits, decode, read_header
from headwater.errors import SampleError
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for line in sys.stdin.buffer:
    data = bytes.fromhex(line.decode())
    try:
        decode(data, read_header(data))
    except SampleError:
        pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_mutated_and_lying_files_stay_under_300_megabytes() -> None:
    files = [data for name in FILES for data in mutations(FILES[name], count=60, seed=7)]
    for name in ("baseline", "progressive"):
        files += [resize_frame(FILES[name], tall, 8000) for tall in (100, 800, 8000)]
    lines = b"\n".join(data.hex().encode() for data in files)
    command = [sys.executable, "-W", "ignore", "-c", MEMORY]
    grown = int(subprocess.run(command, input=lines, capture_output=True, check=True).stdout)
    assert grown < 300
