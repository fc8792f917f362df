"""JPEG XL: exact for every picture; only lossless pixels of the stated shape reach the decoder."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from headwater.data.codecs import CODECS, Pixels, decode, encode
from headwater.errors import SampleCorrupt, WrongUse
from pictures import photo

imagecodecs = pytest.importorskip("imagecodecs")

NAMES = ("jxl1", "jxl3")
every_effort = pytest.mark.parametrize("name", NAMES)

TINY = np.array([[[10, 20, 30], [11, 22, 33]], [[255, 0, 1], [0, 0, 0]]], np.uint8)
TINY_JXL = bytes.fromhex("ff0a081010090804010074004b12c5828524d600e76502c0038e3b748118000245c7bf0dc20ac22700")


def noise(height: int, width: int, channels: int) -> Pixels:
    return np.random.default_rng(3).integers(0, 256, (height, width, channels), np.uint8)


def unseen_colours() -> Pixels:
    pixels = noise(40, 50, 4)
    pixels[:, :, 3] = 0
    return pixels


def repeated_signs() -> Pixels:
    return np.tile(np.pad(noise(9, 7, 3) // 128 * 255, ((4, 4), (4, 4), (0, 0))), (12, 14, 1))


def stripes() -> Pixels:
    return np.where(np.indices((70, 90)).sum(axis=0) % 2, 255, 0).astype(np.uint8)[:, :, None].repeat(3, 2)


PICTURES = {
    "black": np.zeros((224, 224, 3), np.uint8),
    "white": np.full((33, 65, 4), 255, np.uint8),
    "stripes": stripes(),
    "few colours": photo(90, 80) // 64 * 64,
    "colours under a clear alpha": unseen_colours(),
    "repeated signs": repeated_signs(),
    "grey in three channels": photo(64, 64, channels=1).repeat(3, 2),
    "random bits": noise(224, 224, 3),
    "a photo": photo(224, 224),
}


@every_effort
@pytest.mark.parametrize("pixels", PICTURES.values(), ids=PICTURES)
def test_extreme_pictures_come_back(name: str, pixels: Pixels) -> None:
    assert np.array_equal(decode(name, encode(name, pixels), pixels.shape), pixels)


@every_effort
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "size", [(1, 1), (1, 300), (257, 1), (4, 3), (255, 257), (256, 512), (300, 513), (2049, 3), (3, 4100)]
)
def test_every_size_comes_back(name: str, size: tuple[int, int], channels: int) -> None:
    """One group and several, sizes that the header has short forms for, and those that it has not."""
    pixels = photo(*size, channels=channels)
    assert np.array_equal(decode(name, encode(name, pixels), pixels.shape), pixels)


def alike(height: int, width: int, *, seed: int) -> Pixels:
    """Few colours, and side by side, once, two that libjxl 0.11 takes for one at effort 1."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(100, 256, (40, 3), np.uint8)[rng.integers(0, 40, (height, width))]
    pixels[-1, :2] = (41, 33, 33), (52, 39, 37)
    return pixels


@every_effort
def test_colours_that_look_alike_to_the_library_come_back(name: str) -> None:
    for seed in range(40):
        pixels = alike(9 + seed, 17, seed=seed)
        assert np.array_equal(decode(name, encode(name, pixels), pixels.shape), pixels)
    long = alike(2100, 9, seed=0)
    with suppress(WrongUse):  # too long for another effort, so a store sends the file
        assert np.array_equal(decode(name, encode(name, long), long.shape), long)


def test_each_codec_packs_a_photo_tighter_than_the_one_before() -> None:
    sizes = [len(encode(name, photo(224, 224))) for name in ("none", "zstd", *NAMES)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)


def test_a_long_edge_is_packed_at_effort_1() -> None:
    long, longest = photo(2049, 16), photo(2048, 16)
    assert encode("jxl3", long) == encode("jxl1", long)
    assert len(encode("jxl3", longest)) < len(encode("jxl1", longest))


def test_golden_bytes() -> None:
    # What an encoder makes of it may change with the version of libjxl.
    for name in NAMES:
        assert np.array_equal(decode(name, TINY_JXL, (2, 2, 3)), TINY)


@every_effort
def test_five_channels_are_not_packed(name: str) -> None:
    with pytest.raises(WrongUse, match="1 to 4 channels; this has 5"):
        encode(name, noise(3, 3, 5))
    with pytest.raises(SampleCorrupt, match="5 channels"):
        decode(name, encode(name, noise(3, 3, 3)), (3, 3, 5))


def foreign(pixels: object = None, **options: object) -> bytes:
    """What libjxl makes of a picture of 40 x 50 with other options than ours."""
    made = photo(40, 50) if pixels is None else pixels
    return bytes(imagecodecs.jpegxl_encode(made, numthreads=1, **{"lossless": True, "effort": 3, **options}))


DEEP = photo(40, 50).astype(np.uint16) * 257

FOREIGN = {
    "lossy": (foreign(lossless=False, distance=1.0), "description"),
    "lossy but nearly exact": (foreign(lossless=False, distance=0.01), "description"),
    "16 bit": (foreign(DEEP), "begin like a codestream"),
    "16 bit, out of its container": (foreign(DEEP).partition(b"jxlc")[2], "description"),
    "7 bit": (foreign(photo(40, 50) // 2, bitspersample=7), "description"),
    "animation": (foreign(np.stack([photo(40, 50)] * 2)), "description"),
    "in a container": (foreign(usecontainer=True), "begin like a codestream"),
    "grey": (foreign(photo(40, 50, channels=1)[:, :, 0]), "description"),
    "turned": (foreign(photo(50, 40)), "states 50 x 40 pixels"),
    "two files": (foreign() * 2, "too long"),
    "not JPEG XL": (b"\xff\xd8\xff\xe0" + foreign()[4:], "begin like a codestream"),
    "nothing": (b"", "begin like a codestream"),
    "a signature": (b"\xff\x0a", "states 1 x 1 pixels"),
}


@every_effort
@pytest.mark.parametrize(("data", "reason"), FOREIGN.values(), ids=FOREIGN)
def test_another_kind_of_file_is_corrupt(name: str, data: bytes, reason: str) -> None:
    with pytest.raises(SampleCorrupt, match=reason):
        decode(name, data, (40, 50, 3))


@every_effort
def test_no_bit_of_a_header_changes_the_pixels_unseen(name: str) -> None:
    pixels = photo(40, 50)
    data = bytes(encode(name, pixels))
    refused = 0
    for place in range(8 * 11):  # as far as the table of sections
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        try:
            assert np.array_equal(decode(name, changed, pixels.shape), pixels)
        except SampleCorrupt:
            refused += 1
    assert refused >= 8 * 11 - 2  # the size of the groups means nothing where there is one


@every_effort
@pytest.mark.parametrize("size", [(31, 33), (260, 300)])
def test_mutated_data_is_refused_or_has_the_shape_that_was_asked_for(
    name: str, size: tuple[int, int]
) -> None:
    rng = np.random.default_rng(4)
    shape = (*size, 3)
    data = np.frombuffer(encode(name, photo(*size)), np.uint8)
    outcomes = {"refused": 0, "decoded": 0}
    for number in range(300):
        changed = data.copy()
        places = rng.integers(8, 60, 2) if number % 3 else [-rng.integers(1, len(data) // 2)]
        changed[places] ^= np.uint8(1) << rng.integers(0, 8, len(places), np.uint8)
        try:
            assert decode(name, changed, shape).shape == shape
            outcomes["decoded"] += 1
        except SampleCorrupt:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 100


def number(value: int, bits: int) -> str:
    return format(value, f"0{bits}b")[::-1]


def aligned(*fields: str) -> str:
    bits = "".join(fields).replace(" ", "")
    return bits + "0" * (-len(bits) % 8)


def codestream(height: int, width: int, *, sections: int, crop: int = 0) -> bytes:
    """Headers of a lossless file of any size, perhaps with a crop of `crop` x `crop`, then zeros."""
    size = f"0 11 {number(height - 1, 30)} 000 11 {number(width - 1, 30)}"
    place = f"00 {number(0, 8)}" * 2 + f"11 {number(crop - 18688, 30)}" * 2 if crop else ""
    frame = f"0 00 1 00 0 00 11 00 {f'1 {place} 00 00' if crop else '0 00'} 1 00 0 0 00 00 00 0"
    table = f"00 {number(1, 10)}" * sections
    bits = aligned(size, "0 0 0 00 1 00 0 1 00 1") + aligned(frame) + aligned(table)
    octets = (bits[place : place + 8] for place in range(0, len(bits), 8))
    return b"\xff\x0a" + bytes(int(octet[::-1], 2) for octet in octets) + bytes(sections)


HOSTILE = """
import re, resource, sys
from headwater.data.codecs import decode, load
from headwater.errors import SampleCorrupt
def peak():
    return int(re.search(r"VmPeak:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10
load("jxl1")
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for line in sys.stdin:
    data, *shape = line.split()
    before = peak()
    try:
        decode("jxl1", bytes.fromhex(data), tuple(map(int, shape)))
        print(peak() - before, "decoded")
    except SampleCorrupt as error:
        print(peak() - before, error)
"""


def run(program: str, text: str = "", **environment: str) -> list[str]:
    path = os.pathsep.join([*environment.pop("first", "").split(), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="the address space is read from /proc")
def test_what_a_header_states_is_not_allocated() -> None:
    square = 59 * 59 + 8 * 8 + 2  # groups of 1024, groups of 8192, and two more, of 60,000 x 60,000
    cases = {
        "states 60000 x 60000 pixels": (codestream(60_000, 60_000, sections=square), (64, 64, 3)),
        "frame is none": (codestream(64, 64, sections=square, crop=60_000), (64, 64, 3)),
        "3547 sections do not fit": (codestream(60_000, 60_000, sections=1), (60_000, 60_000, 3)),
        "sections do not fit": (codestream(1 << 30, 1 << 30, sections=1), (1 << 30, 1 << 30, 3)),
        "truncated": (codestream(64, 64, sections=1)[:-1], (64, 64, 3)),
        "decoded": (bytes(encode("jxl1", photo(64, 64))), (64, 64, 3)),
    }
    lines = "".join(f"{data.hex()} {' '.join(map(str, shape))}\n" for data, shape in cases.values())
    for said, reason in zip(run(HOSTILE, lines), cases, strict=True):
        megabytes, text = said.split(maxsplit=1)
        assert reason in text
        assert int(megabytes) < 16


def test_the_library_is_loaded_when_it_is_needed() -> None:
    program = (
        "import sys, headwater.cli, headwater.store\n"
        "from headwater.data import codecs\n"
        "codecs.load('none'), codecs.load('zstd')\n"
        "print('imagecodecs' in sys.modules)\n"
        "codecs.load('jxl1')\n"
        "print('imagecodecs._jpegxl' in sys.modules)"
    )
    assert run(program) == ["False", "True"]


def test_without_the_library_its_codecs_are_absent(tmp_path: Path) -> None:
    (tmp_path / "imagecodecs").mkdir()
    (tmp_path / "imagecodecs" / "__init__.py").touch()
    program = "from headwater.data.codecs import CODECS\nprint(*CODECS)"
    assert run("import sys\nsys.modules['imagecodecs'] = None\n" + program) == ["none zstd"]
    assert run(program, first=str(tmp_path)) == ["none zstd"], "a build of the package without JPEG XL"
    assert run(program) == [" ".join(CODECS)] == ["none zstd jxl1 jxl3"]
