"""An excerpt opens to the pixels of the box, bit for bit, whatever the file; what is odd is sent whole."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from headwater.data.image import Data, decode, read_header, turbojpeg
from headwater.data.image.excerpt import FORMS, available_forms, excerpt, open_excerpt
from headwater.data.image.region import Box
from headwater.errors import SampleCorrupt, SampleError, SampleTooLarge, WrongUse
from pictures import SUBSAMPLINGS, Pixels, exif, jpeg, photo, progressive, resize_frame, save, turned

pytestmark = pytest.mark.skipif(turbojpeg.load() is None, reason="no library with the TurboJPEG 3 calls")

RECODINGS = {"progressive": 32, "arithmetic": 128, "optimised": 256, "progressive_arithmetic": 160}
ODD = ("grey", "grey of factors 2", "cmyk", "cmyk 420", "rgb", "restarts", "restart rows", "extended")
KINDS = [*ODD, *SUBSAMPLINGS, *(f"{name} {coding}" for name in SUBSAMPLINGS for coding in RECODINGS)]

sides = st.one_of(st.integers(1, 20), st.sampled_from([31, 32, 33, 34, 35, 36, 37, 48, 50, 66, 71]))


@cache
def make(kind: str, height: int, width: int) -> bytes:
    """A JPEG of this kind: every subsampling in every coding, and what else there is."""
    pixels = photo(height, width, channels=1 if "grey" in kind else 3, seed=height * width)
    subsampling, _, coding = kind.partition(" ")
    if subsampling in SUBSAMPLINGS:
        return recode(jpeg(pixels, subsampling), coding) if coding else jpeg(pixels, subsampling)
    return make_odd(kind, pixels)


def recode(data: bytes, coding: str) -> bytes:
    transformer = turbojpeg.transformer()
    assert transformer is not None
    size = read_header(data).size()
    made = transformer.cut(data, corner=(0, 0), size=size, options=RECODINGS[coding], scans=1)
    assert made is not None
    return made


def make_odd(kind: str, pixels: Pixels) -> bytes:
    if kind.startswith("grey"):
        data = jpeg(pixels)
        at = data.index(b"\xff\xc0")
        return data if kind == "grey" else data[: at + 11] + b"\x22" + data[at + 12 :]
    if kind.startswith("cmyk"):
        inks = np.asarray(Image.fromarray(pixels).convert("CMYK"))
        return bytes(simplejpeg.encode_jpeg(inks, 90, "CMYK", "420" if "420" in kind else "444"))
    if kind == "rgb":
        return save(pixels, "JPEG", keep_rgb=True)
    if kind == "extended":
        return widen_tables(jpeg(pixels))
    return save(pixels, "JPEG", **{"restart_marker_rows" if "rows" in kind else "restart_marker_blocks": 1})


def widen_tables(data: bytes) -> bytes:
    """The same file with quantisation tables of 16 bits, one entry of which needs them."""
    at = data.index(b"\xff\xdb")
    length = struct.unpack_from(">H", data, at + 2)[0]
    number, *values = data[at + 4 : at + 69]
    table = struct.pack(">BBHB64H", 0xFF, 0xDB, 131, 0x10 | number, *values[:-1], 300)
    rest = data[at + 69 : at + 2 + length]
    kept = struct.pack(">BBH", 0xFF, 0xDB, 2 + len(rest)) + rest if rest else b""
    widened = data[:at] + table + kept + data[at + 2 + length :]
    return widened.replace(b"\xff\xc0", b"\xff\xc1", 1)


@st.composite
def boxes_in(draw: st.DrawFn, height: int, width: int) -> Box:
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left))


def open_for(data: bytes, box: Box, payload: Data, *, mode: str = "RGB", oriented: bool = True) -> Pixels:
    header = read_header(data)
    size, orientation = header.size(oriented=oriented), header.orientation
    return open_excerpt(payload, box, size=size, orientation=orientation, mode=mode, oriented=oriented)


def count_wrong(data: bytes, box: Box) -> int:
    """How many forms are absent, or open to other pixels than the file has."""
    header = read_header(data)
    wanted, wrong = decode(data, header, box=box), 0
    for form in FORMS:
        payload = excerpt(data, header, box, form=form)
        wrong += payload is None or not np.array_equal(open_for(data, box, payload), wanted)
    return wrong


def test_the_library_has_every_form() -> None:
    assert available_forms() == tuple(FORMS)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(choices=st.data(), height=sides, width=sides)
def test_an_excerpt_opens_to_the_pixels_of_the_box(
    kind: str, choices: st.DataObject, height: int, width: int
) -> None:
    orientation, oriented = choices.draw(st.integers(1, 8)), choices.draw(st.booleans())
    form, mode = choices.draw(st.sampled_from(list(FORMS))), choices.draw(st.sampled_from(["RGB", "L"]))
    data = turned(make(kind, height, width), orientation)
    header = read_header(data)
    assert header.orientation == orientation
    box = choices.draw(boxes_in(*header.size(oriented=oriented)))
    payload = excerpt(data, header, box, form=form, oriented=oriented)
    assert payload is not None
    found = open_for(data, box, payload, mode=mode, oriented=oriented)
    assert np.array_equal(found, decode(data, header, mode=mode, oriented=oriented, box=box))


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_narrow_strips_at_every_edge(subsampling: str) -> None:
    for width in range(33, 38):
        data = make(subsampling, 40, width)
        for columns in range(1, width - 31):
            assert count_wrong(data, (9, width - columns, 20, columns)) == 0
            assert count_wrong(data, (0, 15, 40, columns)) == 0


def test_a_box_takes_less_and_every_form_is_what_its_name_says() -> None:
    data = jpeg(photo(200, 300))
    header, marks = read_header(data), {}
    sizes = {}
    for form in FORMS:
        payload = excerpt(data, header, (60, 80, 64, 64), form=form)
        assert payload is not None
        found = read_header(payload)
        marks[form], sizes[form] = found.progressive, len(payload)
        assert found.size() == (80, 96)
    assert sizes["arithmetic"] < sizes["optimised"] < sizes["plain"] < len(data) / 4
    assert [form for form in FORMS if marks[form]] == ["progressive", "progressive_arithmetic"]


def test_metadata_stays_behind() -> None:
    data = save(photo(40, 40), "JPEG", exif=exif(6), icc_profile=b"p" * 5000, comment=b"c" * 3000)
    payload = excerpt(data, read_header(data), (0, 0, 16, 16))
    assert payload is not None
    assert len(payload) < 2000
    assert read_header(payload).orientation == 1


def drop_segments(data: bytes, kind: int) -> bytes:
    kept, at = data[:2], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + struct.unpack_from(">H", data, at + 2)[0]
        kept, at = kept + (b"" if data[at + 1] == kind else data[at:end]), end
    return kept + data[at:]


def test_tables_of_the_file_before_are_forgotten() -> None:
    other, box = save(photo(60, 60, seed=5), "JPEG", quality=40, optimize=True), (20, 20, 20, 20)
    without_codes = drop_segments(jpeg(photo(60, 60)), 0xC4)
    without_steps = drop_segments(jpeg(photo(60, 60)), 0xDB)
    for form in FORMS:
        assert excerpt(other, read_header(other), box, form=form) is not None
        assert count_wrong(without_codes, box) == 0
        assert excerpt(without_steps, read_header(without_steps), box, form=form) is None


def test_what_cannot_be_cut_is_sent_whole() -> None:
    data = jpeg(photo(40, 40), "444")
    at = data.index(b"\xff\xc0")
    strange = data[: at + 11] + b"\x14" + data[at + 12 :]
    for file in (save(photo(40, 40), "PNG"), save(photo(40, 40), "WEBP"), strange):
        assert excerpt(file, read_header(file), (0, 0, 8, 8)) is None


@pytest.mark.parametrize("kind", ["420", "420 progressive", "420 arithmetic", "grey", "cmyk", "restarts"])
def test_a_truncated_file_is_sent_whole(kind: str) -> None:
    data = make(kind, 66, 71)
    header = read_header(data)
    for percent in range(0, 100, 3):
        cut = data[: len(data) * percent // 100]
        assert excerpt(cut, header, (0, 0, 8, 8)) is None


def test_scans_that_the_header_did_not_count_are_not_read() -> None:
    data = progressive(photo(64, 64))
    header = read_header(data)
    assert header.scans > 3
    assert excerpt(data, header, (0, 0, 8, 8)) is not None
    assert excerpt(data, msgspec.structs.replace(header, scans=3), (0, 0, 8, 8)) is None


def mutate(data: bytes, *, count: int, seed: int) -> list[bytes]:
    """A few bytes changed, most often in the header and its tables."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        changed = bytearray(data)
        for _ in range(int(rng.integers(1, 4))):
            reach = len(changed) if number % 3 == 0 else min(700, len(changed))
            values = [0, 1, 15, 127, 255, int(rng.integers(256))]
            changed[int(rng.integers(2, reach))] = int(rng.choice(values))
        made.append(bytes(changed))
    return made


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "kind", ["420", "444", "422 optimised", "420 progressive", "grey", "cmyk", "restarts"]
)
def test_a_mutated_file_is_sent_whole_or_opens_to_the_same_pixels(kind: str, count: int) -> None:
    outcomes = {"whole": 0, "same": 0}
    for number, data in enumerate(mutate(make(kind, 66, 71), count=count, seed=len(kind))):
        try:
            header = read_header(data)
        except SampleError:
            continue
        box = (header.height // 3, header.width // 3, header.height // 3 + 1, header.width // 3 + 1)
        payload = excerpt(data, header, box, form=list(FORMS)[number % 2 * number % len(FORMS)])
        if payload is None:
            outcomes["whole"] += 1
        else:
            assert np.array_equal(open_for(data, box, payload), decode(data, header, box=box))
            outcomes["same"] += 1
    assert min(outcomes.values()) > count // 20


def make_wide() -> bytes:
    """A file of one grey block whose AC coefficient of 15 bits no standard table has a code for."""
    data = jpeg(photo(16, 16, channels=1))
    at = data.index(b"\xff\xc4")
    scan = data.index(b"\xff\xda")
    table = struct.pack(">BBHB16B", 0xFF, 0xC4, 20, 0x00, 1, *[0] * 15) + b"\0"
    table += struct.pack(">BBHB16B", 0xFF, 0xC4, 21, 0x10, 0, 2, *[0] * 14) + b"\0\x0f"
    start = scan + 2 + struct.unpack_from(">H", data, scan + 2)[0]
    bits = ("0" + "01" + "1" * 14 + "0" + "00") * 4  # DC 0; 15 bits; end of block
    coded = int(bits.ljust(-(-len(bits) // 8) * 8, "1"), 2).to_bytes(-(-len(bits) // 8), "big")
    return data[:at] + table + data[scan:start] + coded.replace(b"\xff", b"\xff\0") + b"\xff\xd9"


def test_coefficients_without_a_code_are_never_coded_as_something_else() -> None:
    data = make_wide()
    header, box = read_header(data), (0, 0, 16, 16)
    wanted = decode(data, header, box=box)
    assert wanted.max() > wanted.min()
    for form in ("plain", "optimised", "progressive"):
        assert excerpt(data, header, box, form=form) is None
    payload = excerpt(data, header, box, form="arithmetic")
    assert payload is not None
    assert np.array_equal(open_for(data, box, payload), wanted)


@pytest.mark.parametrize("box", [(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 0, 5), (0, 0, 5, 0), (6, 0, 5, 5)])
def test_a_box_outside_is_wrong_use(box: Box) -> None:
    data = jpeg(photo(10, 20))
    with pytest.raises(WrongUse, match="inside an image of 10 x 20"):
        excerpt(data, read_header(data), box)
    with pytest.raises(WrongUse, match="inside an image of 10 x 20"):
        open_excerpt(data, box, size=(10, 20))


def test_an_unknown_form_is_wrong_use() -> None:
    data = jpeg(photo(10, 20))
    with pytest.raises(WrongUse, match="choose from plain, optimised"):
        excerpt(data, read_header(data), (0, 0, 5, 5), form="smallest")


def test_a_payload_that_is_no_excerpt_for_the_box_is_corrupt() -> None:
    data, box = jpeg(photo(100, 120)), (40, 40, 20, 20)
    other = excerpt(data, read_header(data), (40, 40, 20, 40))
    assert other is not None
    strangers = [b"", b"\xff\xd8\xff", data, other, save(photo(48, 48), "PNG"), b"\xff\xd8\xff" + bytes(999)]
    for payload in strangers:
        with pytest.raises(SampleCorrupt):
            open_excerpt(payload, box, size=(100, 120))


def test_a_damaged_payload_is_corrupt() -> None:
    data, box = jpeg(photo(100, 120)), (40, 40, 20, 20)
    for form in FORMS:
        payload = excerpt(data, read_header(data), box, form=form)
        assert payload is not None
        for percent in range(0, 100, 4):
            with pytest.raises(SampleCorrupt):
                open_excerpt(payload[: len(payload) * percent // 100], box, size=(100, 120))
        for changed in mutate(payload, count=100, seed=1):
            try:
                assert open_excerpt(changed, box, size=(100, 120)).shape == (20, 20, 3)
            except SampleCorrupt:
                continue


@pytest.mark.parametrize("size", [(60_000, 60_000), (7000, 9000)])
def test_a_payload_that_claims_too_much_is_refused_before_memory_is_taken(size: tuple[int, int]) -> None:
    payload = resize_frame(jpeg(photo(64, 64)), *size)
    with pytest.raises((SampleCorrupt, SampleTooLarge), match=r"past the cap|lies"):
        open_excerpt(payload, (0, 0, *size), size=size)


def test_an_orientation_that_does_not_exist_is_corrupt() -> None:
    data = jpeg(photo(16, 16))
    for orientation in (0, 9):
        with pytest.raises(SampleCorrupt, match="1 to 8"):
            open_excerpt(data, (0, 0, 16, 16), size=(16, 16), orientation=orientation)


def test_any_buffer_is_taken() -> None:
    data, box = jpeg(photo(64, 64)), (20, 20, 20, 20)
    wanted = decode(data, read_header(data), box=box)
    for buffer in (bytearray(data), memoryview(data), np.frombuffer(data, np.int8)):
        payload = excerpt(buffer, read_header(buffer), box)
        assert payload is not None
        assert np.array_equal(open_for(data, box, memoryview(payload)), wanted)


def test_threads_do_not_disturb_each_other() -> None:
    files = [make(kind, 66, 71) for kind in ("420", "444", "grey", "422 optimised")]

    def work(number: int) -> int:
        return count_wrong(files[number % 4], (number, number, 30, 30))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(36))) == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_nothing_is_left_behind_by_calls_that_succeed_or_fail() -> None:
    data = jpeg(photo(8, 8, channels=1))
    header, box, cut = read_header(data), (0, 0, 8, 8), data[:-4]

    def repeat(times: int) -> None:
        for _ in range(times):
            assert excerpt(data, header, box) is not None
            assert excerpt(cut, header, box) is None

    repeat(500)
    before = resident_bytes()
    repeat(10_000)
    assert resident_bytes() - before < 8 << 20
