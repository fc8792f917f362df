"""The chapter on an early ticket: how masks settled, when it was drawn, and what is left of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.plan.prune import Channels, Look, PrunePlan
from headwater.plan.prune.distances import all_distances, by_chance, width_distance
from headwater.report.page import Chapter, Figure, Table
from headwater.report.plots import axes, floats

TITLE = "An early ticket"
MOST_LOOKS = 200
"""That the matrix shows; of more, so many at equal distances."""


def ticket_chapter(
    looks: Sequence[Look], channels: Channels, *, ratio: float, plan: PrunePlan | None, text: str = ""
) -> Chapter:
    """The distances of all masks, the learning rate beside them, and layers before and after.

    A plan has a row per layer; without one the search still goes on, or ended without a ticket. Raises
    `WrongUse` without a look.
    """
    if not looks:
        raise WrongUse("there is no look yet; a chapter on a ticket needs at least one")
    said = f"Drawn after {plan.step:,} steps: {plan.reason}." if plan else "No ticket was drawn."
    figures = [matrix_figure(looks, ratio=ratio), _steps(looks, channels, ratio)]
    return Chapter(
        title=TITLE,
        text=f"{text}\n\n{said}" if text else said,
        figures=(*figures, *([_widths(plan)] if plan else [])),
        table=_table(plan) if plan else None,
    )


def matrix_figure(looks: Sequence[Look], *, ratio: float) -> Figure:
    """Of every mask to every other: 0 are equal masks, 1 those that have nothing to do with each other."""
    shown = [looks[place] for place in _some(len(looks))]
    steps = [look.step for look in shown]
    trace: Mapping[str, object] = {
        "type": "heatmap",
        "x": steps,
        "y": steps,
        "z": [floats(row) for row in all_distances([look.keep for look in shown]) / by_chance(ratio)],
        "zmin": 0,
        "zmax": 1,
        "colorscale": "Viridis",
        "colorbar": {"title": {"text": "1 is chance"}},
    }
    layout = {
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"title": {"text": "step"}, "autorange": "reversed"},
    }
    return Figure("How far masks are from each other", [trace], layout)


def _some(count: int) -> NDArray[np.int64]:
    if count <= MOST_LOOKS:
        return np.arange(count)
    return np.linspace(0, count - 1, MOST_LOOKS).round().astype(np.int64)


def _steps(looks: Sequence[Look], channels: Channels, ratio: float) -> Figure:
    """From look to look: channels, widths of layers, and the learning rate."""
    steps = [look.step for look in looks]
    pairs = [(one.keep, other.keep) for one, other in pairwise(looks)]
    moved = [float(np.mean(one != other)) / by_chance(ratio) for one, other in pairs]
    widths = [width_distance(channels, one, other) for one, other in pairs]
    traces: list[Mapping[str, object]] = [
        {"x": steps[1:], "y": floats(values), "mode": "lines+markers", "name": name}
        for name, values in (("channels", moved), ("widths of layers", widths))
    ]
    rate = {"x": steps, "y": floats([look.rate for look in looks]), "mode": "lines", "yaxis": "y2"}
    traces.append({**rate, "name": "learning rate", "line": {"dash": "dot"}})
    second = {"title": {"text": "learning rate"}, "overlaying": "y", "side": "right", "rangemode": "tozero"}
    layout = {**axes("step", "distance, 1 is chance"), "yaxis2": second}
    return Figure("How far a mask is from the one before it", traces, layout)


def _widths(plan: PrunePlan) -> Figure:
    names = list(plan.channels.names)
    traces = [
        {"type": "bar", "x": names, "y": list(values), "name": name}
        for name, values in (("before", plan.channels.sizes), ("after", plan.widths))
    ]
    return Figure("Channels of each layer", traces, {**axes("", "channels"), "barmode": "group"})


def _table(plan: PrunePlan) -> Table:
    rows = [
        (name, f"{size:,}", f"{width:,}", f"{1 - width / size:.0%}")
        for name, size, width in zip(plan.channels.names, plan.channels.sizes, plan.widths, strict=True)
    ]
    total = ("all", f"{len(plan.channels):,}", f"{int(plan.keep.sum()):,}", f"{plan.removed:.0%}")
    return Table(("layer", "channels", "kept", "removed"), (*rows, total))
