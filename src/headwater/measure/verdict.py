"""Which resource of a run is the slowest, and what would move that: seconds compared, and said in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ORDER = ("trainer", "disk", "store CPU", "trainer CPU", "link")
"""Of resources that are equally slow, the first is named: offloading helps the last ones most."""
_ALIKE = 0.95
"""A resource that needs so much of the time of the slowest is as slow."""
_ENDLESS = 1e6
"""Samples per second that only a loop without training takes."""
_FIXED = ("trainer", "disk")
"""What no plan can relieve."""


@dataclass(frozen=True)
class Resource:
    """What one resource can do, and the seconds that it needs for a sample.

    `at_least`: it can do more, if what was measured ran side by side.
    """

    rate: float
    unit: str
    seconds: float
    at_least: bool = False


@dataclass(frozen=True)
class Verdict:
    """What a run asks of each resource: trainer, trainer CPU and disk; with a store also link and store CPU.

    What could not be measured is absent. `seconds` is how long a sample took in the run; more than the
    slowest resource needs means that the run waited for something else, such as a store's answers.
    """

    resources: Mapping[str, Resource]
    seconds: float
    samples: int

    @property
    def bottleneck(self) -> str:
        """The slowest resource. A link is measured with the disk behind it, whose time is not the link's."""
        return slowest(self._times)

    @property
    def advice(self) -> str:
        """What would move the bottleneck, and where to."""
        return advise(self._times, {name: resource.rate for name, resource in self.resources.items()})

    @property
    def _times(self) -> dict[str, float]:
        times = {name: resource.seconds for name, resource in self.resources.items()}
        if "link" in times:
            times["link"] = max(0.0, times["link"] - times.get("disk", 0.0))
        return times

    def __str__(self) -> str:
        rows = [("resource", "rate", "ms a sample", "")]
        for name, resource in self.resources.items():
            mark = "slowest" if name == self.bottleneck else ""
            rows.append((name, _rate_text(name, resource), f"{1e3 * resource.seconds:.3f}", mark))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        took = f"the run took {1e3 * self.seconds:.3f} ms a sample, over {self.samples:,} samples"
        return "\n".join([*lines, f"{self.advice}; {took}"])

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; None for a rate without limit."""
        return {
            "bottleneck": self.bottleneck,
            "advice": self.advice,
            "seconds": self.seconds,
            "samples": self.samples,
            "resources": {
                name: {
                    "rate": resource.rate if math.isfinite(resource.rate) else None,
                    "unit": resource.unit,
                    "seconds": resource.seconds,
                    "at_least": resource.at_least,
                }
                for name, resource in self.resources.items()
            },
        }


def slowest(times: Mapping[str, float]) -> str:
    """Which resource needs most seconds; of equals the one that offloading cannot help."""
    return max((name for name in ORDER if name in times), key=lambda name: times[name])


def advise(times: Mapping[str, float], rates: Mapping[str, float]) -> str:
    """What moves the bottleneck, and where to, by the seconds and the rate of each resource."""
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
    return f"{_wish(first, factor, rates[first])} would move the bottleneck to {_name(following)}"


def _about_several(together: list[str], following: str) -> str:
    names = " and ".join(_name(name) for name in sorted(together))
    fixed = [name for name in _FIXED if name in together]
    if fixed:
        return (
            f"{names} are equally slow: a faster {fixed[0]} alone gains nothing, nor does anything else alone"
        )
    until = f", until {_name(following)} is the slowest" if following else ""
    return f"{names} are equally slow: more of either helps, as plans shift work between them{until}"


def _wish(name: str, factor: float, rate: float) -> str:
    if not math.isfinite(factor):
        return f"any more of {_name(name)}"
    if name == "link":
        return f"a link {factor:.2f} times as fast ({format_link(rate * factor)})"
    if name in _FIXED:
        return f"a {name} {factor:.2f} times as fast"
    more = f"{rate * (factor - 1):.2g}"
    return f"{more} more {'core' if more == '1' else 'cores'} at the {name.removesuffix(' CPU')}"


def _name(resource: str) -> str:
    return f"the {resource}"


def _rate_text(name: str, resource: Resource) -> str:
    if name == "link":
        text = format_link(resource.rate)
    elif name == "trainer":
        text = format_trainer(resource.rate)
    elif name == "disk":
        text = f"{resource.rate / 1e6:,.3g} MB/s"
    else:
        text = f"{resource.rate:.3g} {'core' if resource.rate == 1 else 'cores'}"
    return f"at least {text}" if resource.at_least else text


def format_link(bytes_per_second: float) -> str:
    """The rate of a link as networks are sold."""
    if not math.isfinite(bytes_per_second):
        return "not measured"
    bits = bytes_per_second * 8
    return f"{bits / 1e9:.2f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


def format_trainer(samples_per_second: float) -> str:
    """The rate of a training loop."""
    return f"{samples_per_second:,.0f} samples/s" if samples_per_second < _ENDLESS else "no limit seen"
