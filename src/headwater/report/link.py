"""The chapter on a store behind a link: what crossed it, how long it took, what faults did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headwater.report.page import Chapter, Figure, Table
from headwater.report.plots import axes, floats

_COLUMNS = ("epoch", "link MB", "seconds", "images/s", "reconnects", "differing")


@dataclass(frozen=True)
class Passage:
    """One epoch: bytes that crossed the link, connections tried anew, bytes compared with local batches."""

    name: str
    samples: int
    link_bytes: int
    seconds: float
    reconnects: int
    compared_bytes: int
    differing_bytes: int


@dataclass(frozen=True)
class Flow:
    """Bytes that had crossed the link at a time, in seconds; `marks` are faults, by their time."""

    seconds: Sequence[float]
    link_bytes: Sequence[int]
    marks: Mapping[str, float]


def link_chapter(passages: Sequence[Passage], flow: Flow, *, text: str) -> Chapter:
    """A row and a bar per epoch, and the rate over time of the one with the faults."""
    return Chapter(
        title="The store and the link",
        text=text,
        figures=(_bytes(passages), _rate(flow)),
        table=Table(_COLUMNS, tuple(_row(passage) for passage in passages)),
    )


def _row(passage: Passage) -> tuple[str, ...]:
    return (
        passage.name,
        f"{passage.link_bytes / 1e6:,.1f}",
        f"{passage.seconds:.1f}",
        f"{passage.samples / passage.seconds:,.0f}",
        f"{passage.reconnects:,}",
        f"{passage.differing_bytes:,} of {passage.compared_bytes / 1e6:,.0f} MB",
    )


def _bytes(passages: Sequence[Passage]) -> Figure:
    names = [passage.name for passage in passages]
    trace = {
        "type": "bar",
        "x": names,
        "y": floats([passage.link_bytes / 1e6 for passage in passages]),
        "name": "MB",
    }
    return Figure("Bytes over the link, per epoch", [trace], axes("", "MB"))


def _rate(flow: Flow) -> Figure:
    """Megabits per second between readings; each fault is a line."""
    seconds = np.array(flow.seconds)
    rates = np.diff(np.array(flow.link_bytes)) * 8e-6 / np.maximum(np.diff(seconds), 1e-9)
    trace = {"x": floats(seconds[1:]), "y": floats(rates), "mode": "lines", "name": "Mbit/s"}
    layout = {
        **axes("seconds", "Mbit/s"),
        "shapes": [_line(at) for at in flow.marks.values()],
        "annotations": [_label(name, at) for name, at in flow.marks.items()],
    }
    return Figure("The link during the epoch with faults", [trace], layout)


def _line(at: float) -> dict[str, object]:
    where = {"x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper"}
    return {"type": "line", **where, "line": {"dash": "dot", "width": 1, "color": "#c0392b"}}


def _label(name: str, at: float) -> dict[str, object]:
    where = {"x": at, "y": 1, "yref": "paper", "xanchor": "left", "yanchor": "top"}
    return {"text": name, **where, "showarrow": False, "textangle": 90, "font": {"size": 11}}
