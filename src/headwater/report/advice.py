"""What would make an epoch shorter, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping

from headwater.measure.logbook import SiteRates
from headwater.report.balance import slowest

_ALIKE = 0.95
"""A resource that needs so much of the time of the slowest is as slow."""
_ENDLESS = 1e6
"""Samples per second that only a loop without training takes."""


def advise(times: Mapping[str, float], rates: SiteRates) -> str:
    """What moves the bottleneck, and where to; `times` are seconds of the four resources under the plan."""
    first = slowest(times)
    together = [name for name in times if times[name] >= _ALIKE * times[first]]
    rest = {name: seconds for name, seconds in times.items() if name not in together}
    following = max(rest, key=lambda name: rest[name], default="")
    if not times[first]:
        return "nothing takes time"
    if len(together) > 1:
        return _about_several(together, following)
    if not following or not rest[following]:
        return f"{_name(first)} is the only resource that takes time"
    factor = times[first] / rest[following]
    return f"{_wish(first, factor, rates)} would move the bottleneck to {_name(following)}"


def _about_several(together: list[str], following: str) -> str:
    names = " and ".join(_name(name) for name in sorted(together))
    if "trainer" in together:
        return f"{names} are equally slow: a faster trainer alone gains nothing, nor does anything else alone"
    until = f", until {_name(following)} is the slowest" if following else ""
    return f"{names} are equally slow: more of either helps, as plans shift work between them{until}"


def _wish(name: str, factor: float, rates: SiteRates) -> str:
    if not math.isfinite(factor):
        return f"any more of {_name(name)}"
    if name == "link":
        return f"a link {factor:.2f} times as fast ({format_link(rates.link * factor)})"
    if name == "trainer":
        return f"a trainer {factor:.2f} times as fast"
    cores = rates.store_cores if name == "store CPU" else rates.trainer_cores
    more = f"{cores * (factor - 1):.2g}"
    return f"{more} more {'core' if more == '1' else 'cores'} at the {name.removesuffix(' CPU')}"


def _name(resource: str) -> str:
    return f"the {resource}"


def format_link(bytes_per_second: float) -> str:
    """The rate of a link as networks are sold."""
    if not math.isfinite(bytes_per_second):
        return "not measured"
    bits = bytes_per_second * 8
    return f"{bits / 1e9:.2f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


def format_trainer(samples_per_second: float) -> str:
    return f"{samples_per_second:,.0f} samples/s" if samples_per_second < _ENDLESS else "no limit seen"
