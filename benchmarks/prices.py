"""Money and energy of work at both ends of a link, from prices that are given: assumptions, not measured."""

from __future__ import annotations

from collections.abc import Mapping

from measuring import Flag
from trainers import Cost

PRICES = {
    "store-hour": Flag(0.09, "price of an hour of the store's machine"),
    "tuner-hour": Flag(0.09, "price of an hour of the tuner's machine"),
    "gigabyte": Flag(0.01, "price of 1e9 bytes over the link"),
    "idle-watts": Flag(30.0, "of each machine, whatever it does"),
    "core-watts": Flag(10.0, "more of each core that is busy"),
    "gigabyte-joules": Flag(100.0, "of 1e9 bytes over the link"),
}

_JOULES_PER_KWH = 3.6e6


def money_of(cost: Cost, prices: Mapping[str, float], *, alone: bool) -> float:
    """Both machines for as long as it takes, and the link; the tuner `alone` where it needs no store."""
    hourly = prices["tuner-hour"] + (0.0 if alone else prices["store-hour"])
    return cost.seconds / 3600 * hourly + cost.bytes / 1e9 * prices["gigabyte"]


def energy_of(cost: Cost, prices: Mapping[str, float], *, alone: bool) -> float:
    """Kilowatt-hours of the same."""
    idle = cost.seconds * prices["idle-watts"] * (1 if alone else 2)
    busy = (cost.store_cpu + cost.trainer_cpu) * prices["core-watts"]
    return (idle + busy + cost.bytes / 1e9 * prices["gigabyte-joules"]) / _JOULES_PER_KWH
