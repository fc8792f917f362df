"""Codecs: every picture comes back, and nothing else that is sent costs more than an error."""

from __future__ import annotations

import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headwater.data.codecs import CODECS, Pixels, decode, encode
from headwater.errors import SampleCorrupt, WrongUse
from pictures import photo

every_codec = pytest.mark.parametrize("name", CODECS)
pictures = arrays.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4)))

TINY = np.array([[[10, 20, 30], [11, 22, 33]], [[255, 0, 1], [0, 0, 0]]], np.uint8)
TINY_PLAIN = bytes([10, 20, 30, 11, 22, 33, 255, 0, 1, 0, 0, 0])
TINY_DIFFERENCES = bytes([246, 255, 255, 1, 20, 2, 0, 0, 10, 1, 1, 255])
"""Red less green, green, blue less green, each with its left neighbour subtracted, modulo 256."""
TINY_ZSTD = bytes.fromhex("28b52ffd200c610000") + TINY_DIFFERENCES
"""One frame that states 12 bytes, one raw block."""


def frame(*, stated: int, blocks: int, last: int = 1) -> bytes:
    """A zstd frame of zeros in blocks of 128 KiB, each 4 bytes long, whatever size its header states."""
    head = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", stated)
    each = (1 << 1 | (128 << 10) << 3).to_bytes(3, "little") + b"\0"
    end = (last | 1 << 1 | (128 << 10) << 3).to_bytes(3, "little") + b"\0"
    return head + each * (blocks - 1) + end


@every_codec
@given(pixels=pictures)
def test_every_picture_comes_back(name: str, pixels: Pixels) -> None:
    before = pixels.copy()
    made = decode(name, encode(name, pixels), pixels.shape)
    assert made.dtype == np.uint8
    assert np.array_equal(made, before)
    assert np.array_equal(pixels, before)


@every_codec
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_view_is_packed_like_its_copy_and_stays_as_it_is(name: str, channels: int) -> None:
    planar = np.ascontiguousarray(photo(37, 53, channels=channels).transpose(2, 0, 1)).transpose(1, 2, 0)
    for view in (planar, planar[::-1, ::-1], planar[3:20, 7:31], planar.transpose(1, 0, 2)):
        before = view.copy()
        before.flags.writeable = False
        assert bytes(encode(name, view)) == bytes(encode(name, before))
        assert np.array_equal(view, before)


@every_codec
def test_packed_data_is_a_flat_view_of_bytes_and_any_buffer_is_unpacked(name: str) -> None:
    pixels = photo(21, 34)
    packed = encode(name, pixels)
    assert (packed.format, packed.ndim, packed.c_contiguous) == ("B", 1, True)
    plain = bytes(packed)
    for data in (plain, bytearray(plain), np.frombuffer(plain, np.uint8), pa.py_buffer(plain)):
        assert np.array_equal(decode(name, data, pixels.shape), pixels)


def test_zstd_saves_where_a_photo_is_soft() -> None:
    pixels = photo(224, 224)
    assert len(encode("zstd", pixels)) < 0.9 * pixels.size
    assert len(encode("zstd", np.zeros((224, 224, 3), np.uint8))) < 100


def test_golden_bytes() -> None:
    assert bytes(encode("none", TINY)) == TINY_PLAIN
    assert np.array_equal(decode("none", TINY_PLAIN, (2, 2, 3)), TINY)
    # The frame itself may change with the version of zstd, what is in it may not.
    packed = pa.Codec("zstd").decompress(encode("zstd", TINY), decompressed_size=12)
    assert packed.to_pybytes() == TINY_DIFFERENCES
    assert np.array_equal(decode("zstd", TINY_ZSTD, (2, 2, 3)), TINY)


def test_plain_pixels_are_not_copied() -> None:
    pixels = photo(8, 9)
    packed = encode("none", pixels)
    assert np.shares_memory(decode("none", packed, (8, 9, 3)), pixels)


@every_codec
def test_threads_may_share_a_codec(name: str) -> None:
    photos = [photo(60 + number, 80, seed=number) for number in range(16)]
    with ThreadPoolExecutor(4) as pool:
        packed = list(pool.map(lambda pixels: encode(name, pixels), photos * 4))
        made = list(pool.map(lambda data, pixels: decode(name, data, pixels.shape), packed, photos * 4))
    assert all(map(np.array_equal, made, photos * 4))


@every_codec
def test_data_of_another_length_or_shape_is_corrupt(name: str) -> None:
    data = bytes(encode(name, photo(12, 13)))
    for wrong in (*(data[:length] for length in range(len(data))), data + b"\0", data + data):
        with pytest.raises(SampleCorrupt):
            decode(name, wrong, (12, 13, 3))
    for shape in ((12, 13, 4), (12, 13, 1), (11, 13, 3), (12, 14, 3)):
        with pytest.raises(SampleCorrupt):
            decode(name, data, shape)


@every_codec
@pytest.mark.parametrize("shape", [(0, 13, 3), (12, 0, 3), (12, 13, 0), (-12, -13, 3), (12, 13), ()])
def test_a_shape_that_is_none_is_corrupt(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(SampleCorrupt, match="at least 1"):
        decode(name, encode(name, photo(12, 13)), shape)  # type: ignore[arg-type]


def test_mutated_frames_are_refused_or_have_the_shape_that_was_asked_for() -> None:
    rng = np.random.default_rng(4)
    data = np.frombuffer(encode("zstd", photo(31, 33)), np.uint8)
    outcomes = {"refused": 0, "decoded": 0}
    for number in range(2000):
        changed = data.copy()
        changed[rng.integers(0, 20 if number % 2 else len(data), 3)] = rng.integers(0, 256, 3)
        try:
            assert decode("zstd", changed, (31, 33, 3)).shape == (31, 33, 3)
            outcomes["decoded"] += 1
        except SampleCorrupt:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 50


def test_the_tightest_frame_that_there_can_be_is_decoded() -> None:
    made = decode("zstd", frame(stated=64 * 2**17, blocks=64), (2**10, 2**13, 1))
    assert not made.any()


HOSTILE = """
import resource, sys
from headwater.data.codecs import decode
from headwater.errors import SampleCorrupt
room = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (room, room))
for line in sys.stdin:
    data, *shape = line.split()
    try:
        decode("zstd", bytes.fromhex(data), tuple(map(int, shape)))
        print("decoded")
    except SampleCorrupt:
        print("corrupt")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the address space is read from /proc")
def test_what_a_frame_states_is_not_allocated() -> None:
    hostile = {
        "a stated size of 1 TiB": (frame(stated=1 << 40, blocks=1), (64, 64, 3)),
        "a stated size of 4 EiB": (frame(stated=1 << 62, blocks=1), (64, 64, 3)),
        "a stated size that is true, of 1 GiB": (frame(stated=1 << 30, blocks=1 << 13), (64, 64, 3)),
        "a gigabyte, stated as small": (frame(stated=64 * 64 * 3, blocks=1 << 13), (64, 64, 3)),
        "no end": (frame(stated=64 * 64 * 3, blocks=4, last=0), (64, 64, 3)),
        "a window of 1.8 TiB": (b"\x28\xb5\x2f\xfd\x00\xff\x03\x00\x10\x00", (64, 64, 3)),
        "a shape that such data cannot fill": (frame(stated=1 << 30, blocks=1), (20_000, 20_000, 3)),
    }
    sound = frame(stated=8 << 20, blocks=64), (1024, 2048, 4)
    cases = [*hostile.values(), sound]
    lines = "".join(f"{data.hex()} {' '.join(map(str, shape))}\n" for data, shape in cases)
    command = [sys.executable, "-c", HOSTILE]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["corrupt"] * len(hostile) + ["decoded"]


@pytest.mark.parametrize("call", [lambda: encode("zip", TINY), lambda: decode("zip", b"", (2, 2, 3))])
def test_an_unknown_codec_is_named_with_those_that_exist(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(WrongUse, match="'zip'; known: none, zstd"):
        call()


@every_codec
@pytest.mark.parametrize("shape", [(0, 3, 3), (3, 0, 3), (3, 3, 0), (3, 3)])
def test_what_is_no_picture_is_not_packed(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(WrongUse, match="uint8"):
        encode(name, np.zeros(shape, np.uint8))
    with pytest.raises(WrongUse, match="float32"):
        encode(name, np.zeros((3, 3, 3), np.float32))  # type: ignore[arg-type]
