"""Epochs with and without offloading, side by side: bytes over the link, seconds, CPU of both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.report.page import Chapter, Figure, Table
from headwater.report.plots import axes, floats

_COLUMNS = (
    "epoch",
    "planned",
    "link MB",
    "fewer bytes",
    "seconds",
    "store CPU",
    "trainer CPU",
    "differ",
)
_SMALL = 1.2
"""A ratio of bytes below which nobody would say that much was saved."""
_NOTHING = 1.02
_ALIKE = 0.05  # a difference of seconds that one run cannot tell from none


@dataclass(frozen=True)
class Turn:
    """One epoch: bytes over the link, CPU seconds of both sides, samples that a plan was made for.

    `differing` counts samples that were not those of the local files, bit for bit.
    """

    name: str
    samples: int
    planned: int
    link_bytes: int
    seconds: float
    store_cpu_seconds: float
    trainer_cpu_seconds: float
    differing: int


def trade_chapter(turns: Sequence[Turn], *, text: str) -> Chapter:
    """A row and bars per epoch; the first is the one of files, against which the others stand."""
    return Chapter(
        title="Fewer bytes for the same tensors",
        text=f"{text}\n\n{sum_up(turns)}",
        figures=(_bytes(turns), _seconds(turns)),
        table=Table(_COLUMNS, tuple(_row(turn, turns[0]) for turn in turns)),
    )


def sum_up(turns: Sequence[Turn]) -> str:
    """The last epoch against the first, in words that say so where little or nothing was gained."""
    files, last = turns[0], turns[-1]
    fewer = files.link_bytes / last.link_bytes
    words = f"{fewer:.2f} times fewer bytes than files ({_megabytes(last)} instead of {_megabytes(files)} MB)"
    if fewer < _NOTHING:
        words = f"nothing was saved ({_megabytes(last)} MB, as files {_megabytes(files)} MB)"
    elif fewer < _SMALL:
        words = f"the saving is small: {words}"
    store, trainer = (
        f"{getattr(last, name):.1f} instead of {getattr(files, name):.1f}"
        for name in ("store_cpu_seconds", "trainer_cpu_seconds")
    )
    return (
        f"Last epoch: {words}, {_time(files, last)}. Seconds of CPU: {store} at the store, "
        f"{trainer} at the trainer."
    )


def _time(files: Turn, last: Turn) -> str:
    seconds = f"{last.seconds:.1f} s instead of {files.seconds:.1f} s"
    change = last.seconds / files.seconds - 1
    if abs(change) <= _ALIKE:
        return f"in about the same time, {seconds}"
    return f"in {'more' if change > 0 else 'less'} time, {seconds}"


def _row(turn: Turn, files: Turn) -> tuple[str, ...]:
    return (
        turn.name,
        f"{turn.planned / turn.samples:.0%}",
        _megabytes(turn),
        f"{files.link_bytes / turn.link_bytes:.2f}x",
        f"{turn.seconds:.1f}",
        f"{turn.store_cpu_seconds:.1f} s",
        f"{turn.trainer_cpu_seconds:.1f} s",
        f"{turn.differing}/{turn.samples}",
    )


def _megabytes(turn: Turn) -> str:
    return f"{turn.link_bytes / 1e6:,.1f}"


def _bytes(turns: Sequence[Turn]) -> Figure:
    megabytes = floats([turn.link_bytes / 1e6 for turn in turns])
    trace = {"type": "bar", "x": [turn.name for turn in turns], "y": megabytes, "name": "MB"}
    return Figure("Bytes over the link, with and without offloading", [trace], axes("", "MB"))


def _seconds(turns: Sequence[Turn]) -> Figure:
    traces = [
        {"type": "bar", "x": [turn.name for turn in turns], "y": floats(values), "name": name}
        for name, values in (
            ("time", [turn.seconds for turn in turns]),
            ("store CPU", [turn.store_cpu_seconds for turn in turns]),
            ("trainer CPU", [turn.trainer_cpu_seconds for turn in turns]),
        )
    ]
    return Figure("Time, and CPU of both sides", traces, {**axes("", "seconds"), "barmode": "group"})
