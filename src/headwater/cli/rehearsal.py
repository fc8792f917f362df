"""A dry run: what a plan would change, in bytes, seconds, money and energy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.cli.forecast import Forecast
from headwater.cli.sampling import spread
from headwater.measure.verdict import slowest
from headwater.plan.offload import Load, OffloadPlan, Options, Rates, plan_each
from headwater.report.ways import way_names

_MOST = 1_000_000
"""Samples that are planned; of a larger dataset as many, spread evenly, stand for all."""
_TRIED = 1 << 15
"""Samples on which other rates are tried."""
_AMOUNTS = ("bytes", "store_seconds", "trainer_seconds")
_WISHES = {
    "link": "a link twice as fast",
    "store_cores": "twice the cores at the store",
    "trainer_cores": "twice the cores at the trainer",
    "trainer": "a trainer twice as fast",
}
"""By the rate of each."""

Owners = NDArray[np.intp]


@dataclass(frozen=True)
class Prices:
    """What a user says that things cost; None where nothing was said. CPU is that of both sides."""

    per_gb: float | None = None
    per_core_hour: float | None = None
    watts_per_core: float | None = None
    joules_per_gb: float | None = None

    def of(self, sent: float, core_seconds: float) -> dict[str, float]:
        """`money` in the unit of the prices, and `joules`, as far as prices are given."""
        hourly = None if self.per_core_hour is None else self.per_core_hour / 3600
        found = {
            "money": _cost(sent, core_seconds, self.per_gb, hourly),
            "joules": _cost(sent, core_seconds, self.joules_per_gb, self.watts_per_core),
        }
        return {name: cost for name, cost in found.items() if cost is not None}


def _cost(
    sent: float, core_seconds: float, per_gb: float | None, per_core_second: float | None
) -> float | None:
    if per_gb is None and per_core_second is None:
        return None
    return sent / 1e9 * (per_gb or 0.0) + core_seconds * (per_core_second or 0.0)


def rehearse(
    forecast: Forecast, rates: Sequence[Rates], policy: str, *, epochs: int, prices: Prices, most: int = _MOST
) -> dict[str, Any]:
    """Plan the first epoch with at most so many samples, and scale to all samples and epochs.

    `rates` are those of each of the forecast's stores, which get a plan each.
    """
    dataset = forecast.dataset
    positions = spread(dataset, most).positions()
    options, owners = forecast.options(positions, epoch=0), forecast.owners(positions)
    visits = len(dataset) / len(positions)
    weights, known = np.full(len(positions), visits), dict(enumerate(rates))
    plans = plan_each(policy, options, owners=owners, rates=known, weights=weights)
    return {
        "uri": dataset.uri,
        "dataset": dataset.index.version,
        "pipeline": forecast.logbook.pipeline_text,
        "policy": policy,
        "samples": len(dataset),
        "planned": len(positions),
        "epochs": epochs,
        "before": _describe([plan.before for plan in plans.values()], epochs, prices),
        "after": _describe([plan.after for plan in plans.values()], epochs, prices),
        "stores": [
            _describe_store(forecast.names[number], rates[number], plan, epochs=epochs, prices=prices)
            for number, plan in plans.items()
        ],
        "ways": _ways(plans, options, owners, names=way_names(forecast.logbook), scale=epochs * visits),
        "what_if": _what_if(options, owners, known, policy=policy, scale=epochs * visits),
    }


def _describe(loads: Sequence[Load], epochs: int, prices: Prices) -> dict[str, Any]:
    """Of stores that work side by side: amounts add up, and the slowest says how long it takes."""
    amounts = {name: epochs * sum(getattr(load, name) for load in loads) for name in _AMOUNTS}
    times = {name: epochs * max(load.times[name] for load in loads) for name in loads[0].times}
    return {
        **amounts,
        "seconds": max(times.values()),
        "bottleneck": slowest(times),
        "times": times,
        **prices.of(amounts["bytes"], amounts["store_seconds"] + amounts["trainer_seconds"]),
    }


def _describe_store(
    name: str, rates: Rates, plan: OffloadPlan, *, epochs: int, prices: Prices
) -> dict[str, Any]:
    return {
        "store": name,
        "samples": plan.before.visits,
        "rates": asdict(rates),
        "reason": plan.reason,
        "before": _describe([plan.before], epochs, prices),
        "after": _describe([plan.after], epochs, prices),
    }


def _ways(
    plans: Mapping[int, OffloadPlan], options: Options, owners: Owners, *, names: list[str], scale: float
) -> list[dict[str, Any]]:
    """Samples, bytes and store seconds of each way that is used."""
    chosen, rows = np.zeros(len(options), np.uint8), np.arange(len(options))
    for number, plan in plans.items():
        chosen[owners == number] = plan.choice
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


def _what_if(
    options: Options, owners: Owners, rates: Mapping[int, Rates], *, policy: str, scale: float
) -> dict[str, float]:
    """Seconds with twice as much of one resource everywhere, each planned anew, on some of the samples."""
    step = slice(None, None, -(-len(options) // _TRIED))
    some, scale = options.take(step), scale * len(options) / len(owners[step])
    found = {}
    for name, wish in _WISHES.items():
        if all(math.isfinite(getattr(its, name)) for its in rates.values()):
            more = {number: replace(its, **{name: 2 * getattr(its, name)}) for number, its in rates.items()}
            plans = plan_each(policy, some, owners=owners[step], rates=more)
            found[wish] = max(plan.after.seconds for plan in plans.values()) * scale
    return found
