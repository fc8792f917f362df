"""Numbers of bytes, as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

from headwater.errors import WrongUse

UNITS = {"B": 1} | {
    f"{letter}{ending}": base**power
    for ending, base in (("B", 1000), ("iB", 1024))
    for power, letter in enumerate("KMGT", start=1)
}
"""Unit > bytes; letters count in either case."""

_FOLDED = {unit.lower(): size for unit, size in UNITS.items()}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_bytes(written: str | int) -> int:
    """A number of bytes, written as 1073741824, "512MB" or "2GiB"."""
    if isinstance(written, int) and not isinstance(written, bool):
        return written
    match = _SIZE.fullmatch(str(written).strip())
    unit = match and _FOLDED.get(match[2].lower() or "b")
    if not match or not unit:
        raise WrongUse(
            f"{written!r} is no number of bytes; write 1073741824, 512MB or 2GiB ({', '.join(UNITS)})"
        )
    return int(Decimal(match[1]) * unit)
