"""A dry run: what a plan would change, in bytes, seconds, money and energy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from headwater.cli.forecast import Forecast
from headwater.cli.sampling import spread
from headwater.plan.offload import Load, OffloadPlan, Options, Rates, make_plan
from headwater.report.ways import way_names

_MOST = 1_000_000
"""Samples that are planned; of a larger dataset as many, spread evenly, stand for all."""
_TRIED = 1 << 15
"""Samples on which other rates are tried."""


@dataclass(frozen=True)
class Prices:
    """What a user says that things cost; None where nothing was said. CPU is that of both sides."""

    per_gb: float | None = None
    per_core_hour: float | None = None
    watts_per_core: float | None = None
    joules_per_gb: float | None = None

    def of(self, load: Load) -> dict[str, float]:
        """`money` in the unit of the prices, and `joules`, as far as prices are given."""
        hourly = None if self.per_core_hour is None else self.per_core_hour / 3600
        found = {
            "money": _cost(load, self.per_gb, hourly),
            "joules": _cost(load, self.joules_per_gb, self.watts_per_core),
        }
        return {name: cost for name, cost in found.items() if cost is not None}


def _cost(load: Load, per_gb: float | None, per_core_second: float | None) -> float | None:
    if per_gb is None and per_core_second is None:
        return None
    seconds = load.store_seconds + load.trainer_seconds
    return load.bytes / 1e9 * (per_gb or 0.0) + seconds * (per_core_second or 0.0)


def rehearse(
    forecast: Forecast, rates: Rates, policy: str, *, epochs: int, prices: Prices, most: int = _MOST
) -> dict[str, Any]:
    """Plan the first epoch with at most so many samples, and scale to all samples and epochs."""
    dataset = forecast.dataset
    positions = spread(dataset, most).positions()
    options = forecast.options(positions, epoch=0)
    visits = len(dataset) / len(positions)
    plan = make_plan(policy, options, rates=rates, weights=np.full(len(positions), visits))
    return {
        "uri": dataset.uri,
        "dataset": dataset.index.version,
        "pipeline": forecast.logbook.pipeline_text,
        "policy": policy,
        "samples": len(dataset),
        "planned": len(positions),
        "epochs": epochs,
        "rates": asdict(rates),
        "reason": plan.reason,
        "before": _describe(plan.before, epochs, prices),
        "after": _describe(plan.after, epochs, prices),
        "ways": _ways(plan, options, way_names(forecast.logbook), epochs * visits),
        "what_if": _what_if(options, rates, policy, epochs * visits),
    }


def _describe(load: Load, epochs: int, prices: Prices) -> dict[str, Any]:
    scaled = Load(
        visits=load.visits * epochs,
        bytes=load.bytes * epochs,
        trainer_seconds=load.trainer_seconds * epochs,
        store_seconds=load.store_seconds * epochs,
        rates=load.rates,
    )
    return {
        "bytes": scaled.bytes,
        "seconds": scaled.seconds,
        "store_seconds": scaled.store_seconds,
        "trainer_seconds": scaled.trainer_seconds,
        "bottleneck": scaled.bottleneck,
        "times": scaled.times,
        **prices.of(scaled),
    }


def _ways(plan: OffloadPlan, options: Options, names: list[str], scale: float) -> list[dict[str, Any]]:
    """Samples, bytes and store seconds of each way that is used."""
    chosen, rows = plan.choice, np.arange(len(options))
    columns = {
        "samples": np.ones(len(options)),
        "file_bytes": options.bytes[:, 0],
        "bytes": options.bytes[rows, chosen],
        "store_seconds": options.store_seconds[rows, chosen],
    }
    sums = {name: np.bincount(chosen, each, len(names)) * scale for name, each in columns.items()}
    return [
        {"way": names[way], **{name: float(column[way]) for name, column in sums.items()}}
        for way in np.flatnonzero(sums["samples"]).tolist()
    ]


def _what_if(options: Options, rates: Rates, policy: str, scale: float) -> dict[str, float]:
    """Seconds with twice as much of one resource, each planned anew, on some of the samples."""
    step = -(-len(options) // _TRIED)
    columns = (options.bytes, options.store_seconds, options.trainer_seconds)
    some = Options(options.ways, *(column[::step] for column in columns))
    wishes: Mapping[str, tuple[str, float]] = {
        "a link twice as fast": ("link", rates.link),
        "twice the cores at the store": ("store_cores", rates.store_cores),
        "twice the cores at the trainer": ("trainer_cores", rates.trainer_cores),
        "a trainer twice as fast": ("trainer", rates.trainer),
    }
    scale *= len(options) / len(some)
    return {
        wish: make_plan(policy, some, rates=replace(rates, **{name: 2 * rate})).after.seconds * scale
        for wish, (name, rate) in wishes.items()
        if math.isfinite(rate)
    }
