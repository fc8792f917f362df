from __future__ import annotations

import pytest

from headwater.data.image import Limits, read_header
from headwater.errors import SampleTooLarge, WrongUse
from pictures import jpeg, photo, progressive, resize_frame, save

FILES = {
    "jpeg": jpeg(photo(40, 60)),
    "progressive": progressive(photo(40, 60)),
    "png": save(photo(40, 60), "PNG"),
    "webp": save(photo(40, 60), "WEBP"),
}


@pytest.mark.parametrize("format", FILES)
def test_each_cap_is_the_last_value_that_passes(format: str) -> None:
    data = FILES[format]
    read_header(data, Limits(bytes=len(data), pixels=2400))
    with pytest.raises(SampleTooLarge, match=r"Limits\.bytes"):
        read_header(data, Limits(bytes=len(data) - 1))
    with pytest.raises(SampleTooLarge, match=r"Limits\.pixels"):
        read_header(data, Limits(pixels=2399))
    with pytest.raises(SampleTooLarge, match=r"Limits\.seconds"):
        read_header(data, Limits(seconds=1e-6))


def test_scans_are_capped() -> None:
    data = FILES["progressive"]
    scans = read_header(data).scans
    assert scans == data.count(b"\xff\xda") > 5
    read_header(data, Limits(scans=scans))
    with pytest.raises(SampleTooLarge, match=r"Limits\.scans"):
        read_header(data, Limits(scans=scans - 1))


def test_a_bomb_of_scans_is_refused_by_their_number_and_by_the_time_they_take() -> None:
    data = progressive(photo(64, 64))
    last = data.rindex(b"\xff\xda")
    bomb = data[:-2] + data[last:-2] * 200 + b"\xff\xd9"
    with pytest.raises(SampleTooLarge, match="scans"):
        read_header(bomb)
    large = resize_frame(data[:-2] + data[last:-2] * 200 + b"\0" * 1_000_000 + b"\xff\xd9", 8000, 7900)
    with pytest.raises(SampleTooLarge, match=r"about 1\d\.\d s"):
        read_header(large, Limits(scans=1000))


def test_400_megapixels_in_a_kilobyte_are_refused() -> None:
    with pytest.raises(SampleTooLarge, match="20000 x 20000"):
        read_header(resize_frame(jpeg(photo(32, 32)), 20_000, 20_000))


@pytest.mark.parametrize("name", ["bytes", "pixels", "scans", "seconds"])
def test_a_limit_that_lets_nothing_through_is_wrong_use(name: str) -> None:
    with pytest.raises(WrongUse, match=name):
        Limits(**{name: 0})


def test_the_tighter_of_both() -> None:
    one, other = Limits(bytes=10, pixels=20, scans=3, seconds=4.0), Limits(bytes=20, pixels=10, scans=3)
    assert one.within(other) == other.within(one) == Limits(bytes=10, pixels=10, scans=3, seconds=4.0)


def test_no_number_is_no_limit() -> None:
    with pytest.raises(WrongUse, match="seconds=nan"):
        Limits(seconds=float("nan"))
