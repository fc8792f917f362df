"""Numbers of bytes, as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.data.bytecount import parse_bytes
from headwater.errors import WrongUse


@pytest.mark.parametrize(
    ("written", "count"),
    [
        (5, 5),
        ("5", 5),
        ("2GiB", 2 << 30),
        ("512MB", 512_000_000),
        ("1.5 kb", 1500),
        ("1TiB", 1 << 40),
        ("9007199254740993", 9007199254740993),
        (" 7B ", 7),
    ],
)
def test_parse_bytes(written: str | int, count: int) -> None:
    assert parse_bytes(written) == count


@pytest.mark.parametrize("written", ["", "GiB", "-1", "1e9", "2G", "inf", "1,5GB", "0x10", True])
def test_what_is_no_number_of_bytes_is_wrong_use(written: Any) -> None:
    with pytest.raises(WrongUse, match="no number of bytes"):
        parse_bytes(written)
