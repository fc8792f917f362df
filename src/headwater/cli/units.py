"""Rates and cores as people write them."""

from __future__ import annotations

import math
import re

from headwater.errors import WrongUse

_BYTES = {"bit": 1 / 8, "b": 1.0}
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_RATE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(bit|b)(?:/s|ps)?", re.IGNORECASE)


def parse_rate(written: str) -> float:
    """Bytes per second of `100Mbit`, `1.2Gbit/s` or `12.5MB`; raises `WrongUse` for what is no rate."""
    found = _RATE.fullmatch(written.strip())
    # a small b alone is as often meant as bits, so it is not guessed
    if not found or found[3] == "b":
        raise WrongUse(f"{written!r} is no rate of a link; write bits as 100Mbit or bytes as 12.5MB")
    rate = float(found[1]) * _SCALES[found[2].lower()] * _BYTES[found[3].lower()]
    if not rate > 0:
        raise WrongUse(f"{written!r} is no link at all; a rate is above 0")
    return rate


def parse_cores(written: str) -> float:
    """A number of cores, which may be a fraction; raises `WrongUse` for what is none."""
    try:
        cores = float(written)
    except ValueError:
        cores = -1.0
    if not 0 <= cores < math.inf:
        raise WrongUse(f"{written!r} is no number of cores; write such as 2 or 0.5")
    return cores
