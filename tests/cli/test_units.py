from __future__ import annotations

import pytest

from headwater.cli.units import parse_cores, parse_rate
from headwater.errors import WrongUse


@pytest.mark.parametrize(
    ("written", "rate"),
    [
        ("100Mbit", 12.5e6),
        ("100 mbit/s", 12.5e6),
        ("1.2Gbit", 150e6),
        ("12.5MB", 12.5e6),
        (".5GB/s", 5e8),
        ("9600bit", 1200),
        ("640kB", 640e3),
        ("1Tbit", 125e9),
    ],
)
def test_bits_and_bytes(written: str, rate: float) -> None:
    assert parse_rate(written) == pytest.approx(rate)


@pytest.mark.parametrize("written", ["100", "fast", "", "100Mb", "-1Mbit", "1,5Gbit", "1MBit/h", "nanMbit"])
def test_what_is_no_rate(written: str) -> None:
    with pytest.raises(WrongUse, match=r"write bits as 100Mbit or bytes as 12\.5MB"):
        parse_rate(written)


@pytest.mark.parametrize(("written", "cores"), [("2", 2.0), ("0.5", 0.5), ("0", 0.0), (" 1e1 ", 10.0)])
def test_cores(written: str, cores: float) -> None:
    assert parse_cores(written) == cores


@pytest.mark.parametrize("written", ["", "two", "-1", "nan", "inf"])
def test_what_is_no_number_of_cores(written: str) -> None:
    with pytest.raises(WrongUse, match=r"write such as 2 or 0\.5"):
        parse_cores(written)


def test_no_link_at_all() -> None:
    with pytest.raises(WrongUse, match="above 0"):
        parse_rate("0Mbit")
