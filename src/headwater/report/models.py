"""The chapters on a model beside the data: what crosses the link, and what a fresh one is good for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headwater.report.page import Chapter, Figure, Table
from headwater.report.plots import axes, floats

TITLE = "Models beside the data"

_COLUMNS = ("what", "link kB", "instead of kB", "fewer", "seconds", "outcome")
_PERIODS = ("period", "photos", "of new kinds", "stale model right", "fresh model right")


@dataclass(frozen=True)
class Crossing:
    """One thing that was done, or several of a kind: bytes over the link, both ways.

    `instead_bytes` would have crossed otherwise: the photos themselves, or the whole model; 0 if nothing.
    """

    what: str
    link_bytes: int
    instead_bytes: int
    seconds: float


@dataclass(frozen=True)
class Period:
    """A part of a stream: its photos, the share of them of kinds that the first model does not know.

    `stale` and `fresh` are the shares that the first model and the newest one label rightly.
    """

    photos: int
    new: float
    stale: float
    fresh: float


def add_up(crossings: Iterable[Crossing]) -> list[Crossing]:
    """One for each kind of thing, in the order of the first ones."""
    found: dict[str, Crossing] = {}
    for one in crossings:
        before = found.get(one.what, Crossing(one.what, 0, 0, 0.0))
        found[one.what] = Crossing(
            one.what,
            before.link_bytes + one.link_bytes,
            before.instead_bytes + one.instead_bytes,
            before.seconds + one.seconds,
        )
    return list(found.values())


def models_chapter(crossings: Sequence[Crossing], outcomes: Mapping[str, str], *, text: str) -> Chapter:
    """A row for each thing that was done; `outcomes` say in words what came of it."""
    rows = tuple(_row(one, outcomes.get(one.what, "")) for one in crossings)
    return Chapter(title=TITLE, text=text, figures=(_bytes(crossings),), table=Table(_COLUMNS, rows))


def drift_chapter(periods: Sequence[Period], *, text: str) -> Chapter:
    """A row for each period, and both models over time."""
    rows = tuple(_period(number, period) for number, period in enumerate(periods, start=1))
    return Chapter(
        title="A stream that drifts",
        text=f"{text}\n\n{sum_up(periods)}",
        figures=(_accuracy(periods),),
        table=Table(_PERIODS, rows),
    )


def sum_up(periods: Sequence[Period]) -> str:
    """The last period against the first, for both models."""
    first, last = periods[0], periods[-1]
    points = 100 * (last.fresh - last.stale)
    return (
        f"The stale model labelled {first.stale:.0%} of the first period's photos rightly, and "
        f"{last.stale:.0%} of the last one's; the fresh one {last.fresh:.0%} of these, {abs(points):.0f} "
        f"points {'more' if points >= 0 else 'less'}."
    )


def _row(one: Crossing, outcome: str) -> tuple[str, ...]:
    fewer = f"{one.instead_bytes / one.link_bytes:,.0f}x" if one.instead_bytes and one.link_bytes else ""
    return (
        one.what,
        _kilobytes(one.link_bytes),
        _kilobytes(one.instead_bytes),
        fewer,
        f"{one.seconds:.1f}",
        outcome,
    )


def _kilobytes(count: int) -> str:
    return f"{count / 1e3:,.1f}" if count else ""


def _period(number: int, period: Period) -> tuple[str, ...]:
    shares = (f"{share:.0%}" for share in (period.new, period.stale, period.fresh))
    return (str(number), f"{period.photos:,}", *shares)


def _bytes(crossings: Sequence[Crossing]) -> Figure:
    """Bars over a logarithmic axis, of what has both numbers: they are a thousandfold apart."""
    shown = [one for one in crossings if one.link_bytes and one.instead_bytes]
    names = [one.what for one in shown]
    traces = [
        {"type": "bar", "x": names, "y": floats([count / 1e3 for count in counts]), "name": name}
        for name, counts in (
            ("crossed the link", [one.link_bytes for one in shown]),
            ("would have crossed instead", [one.instead_bytes for one in shown]),
        )
    ]
    layout = {"xaxis": {}, "yaxis": {"title": {"text": "kB"}, "type": "log"}, "barmode": "group"}
    return Figure("Bytes over the link, and those that stayed where they are", traces, layout)


def _accuracy(periods: Sequence[Period]) -> Figure:
    numbers = list(range(1, len(periods) + 1))
    lines = (
        ("stale model", [period.stale for period in periods], "solid"),
        ("fresh model", [period.fresh for period in periods], "solid"),
        ("photos of new kinds", [period.new for period in periods], "dot"),
    )
    traces = [
        {"x": numbers, "y": floats(shares), "mode": "lines+markers", "name": name, "line": {"dash": dash}}
        for name, shares, dash in lines
    ]
    layout = axes("period", "share of the period's photos")
    return Figure("Photos labelled rightly while their kinds change", traces, layout)
