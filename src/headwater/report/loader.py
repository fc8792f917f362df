"""The chapter on a training run through the loader: how fast, how well, what was waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.measure.stats import Stats
from headwater.report.page import Chapter, Figure, Sheet, Table
from headwater.report.plots import axes, floats

_RATE_POINTS = 120


@dataclass(frozen=True, eq=False)
class Step:
    """One step of training: seconds since the run began, samples in the batch, mean loss, share right."""

    seconds: float
    samples: int
    loss: float
    accuracy: float


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """What a training run measured; `validation` is accuracy at the end of each epoch."""

    steps: Sequence[Step]
    epoch_ends: Sequence[int]
    validation: Sequence[float]
    stats: Stats
    sizes: NDArray[np.int64]
    seconds: float


def loader_chapter(
    run: TrainingRun, *, text: str, facts: Mapping[str, str], sheets: Sequence[Sheet]
) -> Chapter:
    """Rate, learning curves, waits, bytes and file sizes; `facts` are further rows of the table."""
    rows = (*facts.items(), *_totals(run))
    return Chapter(
        title="The loader",
        text=text,
        figures=(_rate(run), _loss(run), _accuracy(run), _seconds(run.stats), _sizes(run.sizes)),
        table=Table(("measure", "value"), rows),
        sheets=tuple(sheets),
    )


def _totals(run: TrainingRun) -> list[tuple[str, str]]:
    stats = run.stats
    return [
        (
            "images per second, training included",
            f"{sum(step.samples for step in run.steps) / run.seconds:,.0f}",
        ),
        ("samples served", f"{stats.samples:,}"),
        ("bytes read", f"{stats.bytes_moved / 1e6:,.1f} MB"),
        ("bytes of the files served", f"{stats.bytes_raw / 1e6:,.1f} MB"),
        ("waited for the loader", f"{stats.waited:.1f} s of {run.seconds:.1f} s"),
        ("samples skipped, substituted", f"{stats.skipped}, {stats.substituted}"),
        ("validation accuracy", ", ".join(f"{share:.1%}" for share in run.validation)),
    ]


def _rate(run: TrainingRun) -> Figure:
    """Images per second between every few steps."""
    every = max(1, len(run.steps) // _RATE_POINTS)
    seconds = np.array([0.0, *(step.seconds for step in run.steps)])[::every]
    served = np.cumsum([0, *(step.samples for step in run.steps)])[::every]
    rates = np.diff(served) / np.maximum(np.diff(seconds), 1e-9)
    trace = {"x": floats(seconds[1:]), "y": floats(rates), "mode": "lines", "name": "images/s"}
    return Figure("Images per second over time", [trace], axes("seconds", "images per second"))


def _loss(run: TrainingRun) -> Figure:
    trace = {"y": floats([step.loss for step in run.steps]), "mode": "lines", "name": "training loss"}
    return Figure("Loss", [trace], axes("step", "cross-entropy"))


def _accuracy(run: TrainingRun) -> Figure:
    training = {
        "y": floats([step.accuracy for step in run.steps]),
        "mode": "lines",
        "name": "training batch",
        "opacity": 0.6,
    }
    validation = {
        "x": list(run.epoch_ends),
        "y": floats(run.validation),
        "mode": "lines+markers",
        "name": "validation",
    }
    return Figure("Accuracy", [training, validation], axes("step", "share right"))


def _seconds(stats: Stats) -> Figure:
    """Waits are wall time of the training loop, work is summed over threads."""
    traces = [
        {"type": "bar", "x": list(seconds), "y": floats(list(seconds.values())), "name": name}
        for name, seconds in (("loop waited", stats.wait_seconds), ("threads worked", stats.work_seconds))
    ]
    return Figure("Seconds by cause", traces, {**axes("stage", "seconds"), "barmode": "group"})


def _sizes(sizes: NDArray[np.int64]) -> Figure:
    """Binned here, so that a million files make a small page."""
    counts, edges = np.histogram(sizes / 1e3, bins=40)
    middles = (edges[1:] + edges[:-1]) / 2
    trace = {"type": "bar", "x": floats(middles), "y": counts.tolist(), "name": "files"}
    return Figure("File sizes", [trace], {**axes("kB", "files"), "bargap": 0.05})
