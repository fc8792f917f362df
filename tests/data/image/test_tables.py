from __future__ import annotations

import struct

import pytest

from headwater.data.image.tables import has_wide_codes
from pictures import SUBSAMPLINGS, jpeg, photo, save


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_the_tables_of_ordinary_files_are_not_wide(subsampling: str) -> None:
    assert not has_wide_codes(jpeg(photo(40, 40), subsampling, quality=100))


def test_tables_made_for_the_file_are_not_wide() -> None:
    for quality in (30, 100):
        assert not has_wide_codes(save(photo(40, 40), "JPEG", quality=quality, optimize=True))


@pytest.mark.parametrize(
    ("table", "symbol", "wide"), [(0x00, 12, True), (0x10, 0xFB, True), (0x10, 0xFA, False)]
)
def test_one_symbol_is_enough(table: int, symbol: int, wide: bool) -> None:
    data = jpeg(photo(40, 40))
    segment = struct.pack(">BBHB16B", 0xFF, 0xC4, 20, table, 1, *[0] * 15) + bytes([symbol])
    padded = data[:2] + b"\xff" + segment + data[2:]
    assert has_wide_codes(padded) is wide


def test_the_second_table_of_a_segment_is_seen() -> None:
    data = jpeg(photo(40, 40))
    body = struct.pack(">B16BB", 0, 1, *[0] * 15, 5) + struct.pack(">B16BB", 0x10, 1, *[0] * 15, 0x0F)
    assert has_wide_codes(data[:2] + b"\xff\xc4" + struct.pack(">H", 2 + len(body)) + body + data[2:])


def test_a_file_that_ends_before_its_scan_is_not_trusted() -> None:
    data = jpeg(photo(40, 40))
    for end in range(2, data.index(b"\xff\xda"), 7):
        assert has_wide_codes(data[:end])
