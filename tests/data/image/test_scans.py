from __future__ import annotations

import struct

import numpy as np
import pytest

from headwater.data.image import decode, read_header
from headwater.errors import SampleCorrupt
from pictures import Pixels, jpeg, keep_scans, open_pillow, photo, progressive


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:0"])
@pytest.mark.parametrize("kept", range(1, 10))
def test_missing_scans_are_truncation_though_libjpeg_says_nothing(subsampling: str, kept: int) -> None:
    data = progressive(photo(48, 64), subsampling)
    cut = keep_scans(data, kept)
    assert open_pillow(cut).shape == (48, 64, 3)
    with pytest.raises(SampleCorrupt, match="truncated"):
        read_header(cut)


def test_grey_progressive_without_its_last_scan() -> None:
    data = progressive(photo(48, 64, channels=1))
    assert read_header(data).scans == data.count(b"\xff\xda")
    with pytest.raises(SampleCorrupt, match="component 1 "):
        read_header(keep_scans(data, 5))


def test_what_follows_the_end_of_the_image_does_not_count() -> None:
    data = progressive(photo(48, 64))
    film = data + np.random.default_rng(0).integers(0, 256, 100_000).astype(np.uint8).tobytes()
    film += b"\xff\xda" * 500
    header = read_header(film)
    assert header == read_header(data)
    assert np.array_equal(decode(film, header), decode(data, header))


def test_any_buffer_will_do() -> None:
    data = progressive(photo(48, 64))
    assert read_header(memoryview(data)) == read_header(np.frombuffer(data, np.uint8)) == read_header(data)


def add_comment(data: bytes, content: bytes, *, scan: int) -> bytes:
    """The file with a comment before the header of a scan, or before its end."""
    marks = [at for at in range(len(data)) if data.startswith(b"\xff\xda", at)]
    at = data.rindex(b"\xff\xd9") if scan < 0 else marks[scan]
    return data[:at] + struct.pack(">BBH", 0xFF, 0xFE, 2 + len(content)) + content + data[at:]


@pytest.mark.parametrize(
    "content",
    [b"\xff\xd9", b"\xff\xda" * 500, b"\xff\xfe\xff\xff", b"\xff"],
    ids=["end", "scans", "comment", "half"],
)
@pytest.mark.parametrize("scan", [1, 2, 5])
def test_markers_within_a_comment_are_none(content: bytes, scan: int) -> None:
    data = progressive(photo(48, 64))
    commented = add_comment(data, content, scan=scan)
    header = read_header(commented)
    assert header == read_header(data)
    assert np.array_equal(decode(commented, header), open_pillow(commented))


def test_a_comment_cannot_bring_what_scans_lack() -> None:
    """It holds the header of a scan that would have every coefficient of every component."""
    whole = b"\xff\xda\x00\x0c\x03\x01\x00\x02\x00\x03\x00\x00\x3f\x00"
    forged = add_comment(keep_scans(progressive(photo(48, 64)), 3), whole, scan=-1)
    assert open_pillow(forged).shape == (48, 64, 3)
    with pytest.raises(SampleCorrupt, match=r"of 3 scans lacks .* truncated"):
        read_header(forged)


@pytest.mark.parametrize("options", [{"restart_marker_rows": 1}, {"restart_marker_blocks": 1}], ids=str)
def test_restarts_and_padding_within_scans(options: dict[str, int]) -> None:
    data = progressive(photo(48, 64), **options)
    assert b"\xff\xd0" in data
    padded = data.replace(b"\xff\xda", b"\xff\xff\xff\xda")
    for file in (data, padded):
        header = read_header(file)
        assert header.scans == data.count(b"\xff\xda")
        assert np.array_equal(decode(file, header), open_pillow(data))


def in_scans(planes: list[Pixels], factors: list[int]) -> tuple[bytes, list[bytes]]:
    """A baseline header and a scan per plane, from grey files, whose coded data is what a scan holds."""
    parts = [jpeg(plane[:, :, None]) for plane in planes]
    scans = [part[part.index(b"\xff\xda") : -2] for part in parts]
    head = parts[0][: parts[0].index(b"\xff\xda")]
    at = head.index(b"\xff\xc0")
    frame = b"\xff\xc0\x00\x11" + head[at + 4 : at + 9] + b"\x03"
    frame += b"".join(bytes([number, factor, 0]) for number, factor in enumerate(factors, start=1))
    scans = [scan[:5] + bytes([number]) + scan[6:] for number, scan in enumerate(scans, start=1)]
    return head[:at] + frame + head[at + 13 :], scans


def test_baseline_in_several_scans_needs_all_components() -> None:
    head, scans = in_scans([photo(48, 64, seed=seed)[:, :, 0] for seed in range(3)], [0x11, 0x11, 0x11])
    data = head + b"".join(scans) + b"\xff\xd9"
    header = read_header(data)
    assert (header.scans, header.progressive, header.subsampling) == (3, False, "444")
    assert np.array_equal(decode(data, header), open_pillow(data))
    with pytest.raises(SampleCorrupt, match="component 3 "):
        read_header(head + scans[0] + scans[1] + b"\xff\xd9")


def test_a_subsampling_that_turbojpeg_does_not_know_is_left_to_pillow() -> None:
    planes = [photo(48, 96)[:, :, 0], photo(48, 32)[:, :, 1], photo(48, 32)[:, :, 2]]
    head, scans = in_scans(planes, [0x31, 0x11, 0x11])
    data = head + b"".join(scans) + b"\xff\xd9"
    header = read_header(data)
    assert (header.subsampling, header.regionable) == ("", False)
    assert np.array_equal(decode(data, header), open_pillow(data))
    assert np.array_equal(decode(data, header, box=(5, 6, 7, 8)), open_pillow(data)[5:12, 6:14])
