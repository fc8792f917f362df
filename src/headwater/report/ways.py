"""The ways of a logbook: what they are called, what they cost, and why they were used or not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from headwater.data.codecs.excerpts import EXCERPTS
from headwater.measure.logbook import Logbook, WayTotals
from headwater.report.balance import balances

Point = tuple[float, float]
"""Store seconds a sample, and cost."""


def way_names(logbook: Logbook) -> list[str]:
    """`file`, `after resize`, `after resize, jxl1`, `cut inside the JPEG, jpeg`."""
    return [_name(logbook, cut, codec) for cut, codec in logbook.key.ways]


def _name(logbook: Logbook, cut: int, codec: str) -> str:
    if not cut:
        return "file"
    if codec in EXCERPTS:
        return f"cut inside the JPEG, {codec}"
    step = str(logbook.steps[cut - 1]["name"]) if cut <= len(logbook.steps) else f"step {cut}"
    return f"after {step}" + ("" if codec == "none" else f", {codec}")


@dataclass(frozen=True)
class Ways:
    """Reasons for each way, from averages over the samples that came on it."""

    logbook: Logbook

    @cached_property
    def names(self) -> list[str]:
        return way_names(self.logbook)

    @cached_property
    def planned(self) -> list[int]:
        """Samples per way that plans asked for."""
        counts = [stretch.ways for stretch in self.logbook.stretches if stretch.predicted is not None]
        return [sum(column) for column in zip(*counts, strict=True)] or [0] * len(self.names)

    @cached_property
    def bottleneck(self) -> str:
        """What was the slowest without offloading; empty if that is not known yet."""
        found = balances(self.logbook)
        return found[0].bottleneck_before if found else ""

    @cached_property
    def _points(self) -> dict[int, Point]:
        """Of each way on which samples came: store seconds a sample, and what it asks of the bottleneck."""
        found = {}
        for way, total in enumerate(self.logbook.totals):
            if total.done and total.file_bytes:
                found[way] = total.store_seconds / total.done, self._cost(total)
        return found

    def _cost(self, total: WayTotals) -> float:
        if self.bottleneck == "trainer CPU":
            return total.trainer_seconds / total.done
        return total.bytes / total.file_bytes

    def why(self, way: int) -> str:
        """Why samples went this way, or why none did."""
        total, planned = self.logbook.totals[way], self.planned[way]
        if planned:
            return f"{planned / sum(self.planned):.1%} of what was planned" + _pushed_back(way, total)
        if not sum(self.planned):
            return "nothing was planned yet"
        if not total.asked:
            return "never asked for: not in this run, or the store cannot do it"
        if way not in self._points:
            return "the store never did it" + _pushed_back(way, total)
        return self._against(way)

    def _against(self, way: int) -> str:
        if self.bottleneck not in ("link", "trainer CPU"):
            return f"the {self.bottleneck} was the slowest, which no way relieves"
        spent, cost = self._points[way]
        if way and cost >= self._points.get(0, (0.0, 1.0))[1]:
            return f"on average no better for the {self.bottleneck} than the file"
        better = [
            other
            for other, (its, least) in self._points.items()
            if other not in (0, way) and its <= spent and least <= cost
        ]
        if better:
            best = min(better, key=lambda other: self._points[other][1])
            return f"not on the hull: {self.names[best]} saves more for less"
        if _above_chord((spent, cost), (point for other, point in self._points.items() if other != way)):
            return "not on the hull: a mixture of other ways saves more for less"
        return "on the hull, but other ways saved more per store second"


def _pushed_back(way: int, total: WayTotals) -> str:
    missing = total.asked - total.done if way else 0
    return f"; {missing:,} pushed back" if missing > 0 else ""


def _above_chord(point: Point, others: Iterable[Point]) -> bool:
    """Whether some two others, mixed to the same store seconds, cost less."""
    spent, cost = point
    sides: tuple[list[Point], list[Point]] = ([], [])
    for other in others:
        sides[other[0] > spent].append(other)
    return any(
        left[1] + (right[1] - left[1]) * (spent - left[0]) / (right[0] - left[0]) < cost
        for left in sides[0]
        for right in sides[1]
    )
