"""How busy trainer, link and both CPUs are: the model by which plans are compared.

The four work at the same time, so an epoch takes as long as the slowest of them (SOPHON, HotStorage'24):

    trainer      visits / samples per second
    link         bytes / bytes per second
    trainer CPU  CPU seconds / cores
    store CPU    CPU seconds / (cores x speed of a core)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Rates:
    """What the four resources can do in a second; what is not known is infinite, and then never the slowest.

    `store_speed` is the speed of a store's core over that of the core on which the options' store seconds
    were measured. `store_seconds_per_visit` caps what may be spent at the store, on average, in its own CPU
    seconds: for a store that others need too.
    """

    link: float
    store_cores: float
    trainer_cores: float = math.inf
    trainer: float = math.inf
    store_speed: float = 1.0
    store_seconds_per_visit: float = math.inf

    def __post_init__(self) -> None:
        for name in ("link", "trainer_cores", "trainer", "store_speed"):
            if not getattr(self, name) > 0:
                raise WrongUse(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("store_cores", "store_seconds_per_visit"):
            if not getattr(self, name) >= 0:
                raise WrongUse(f"{name} is {getattr(self, name)}; it must be at least 0")
        if not math.isfinite(self.store_speed):
            raise WrongUse("store_speed is infinite; it compares two cores, so 1 if they are alike")

    def share(self, part: float) -> Rates:
        """For the samples of one of several stores, which get that part of the trainer."""
        return replace(self, trainer_cores=self.trainer_cores * part, trainer=self.trainer * part)

    def cap(self, visits: float) -> float:
        """CPU seconds that the store may spend on so many visits."""
        return self.store_seconds_per_visit * visits if visits > 0 else math.inf


@dataclass(frozen=True)
class Loads:
    """What many plans ask of the four resources: arrays, one place per plan."""

    visits: float
    bytes: Doubles
    trainer_seconds: Doubles
    store_seconds: Doubles
    rates: Rates

    @property
    def trainer(self) -> Doubles:
        return np.full(len(self.bytes), self.visits / self.rates.trainer)

    @property
    def link(self) -> Doubles:
        return _over(self.bytes, self.rates.link)

    @property
    def trainer_cpu(self) -> Doubles:
        return _over(self.trainer_seconds, self.rates.trainer_cores)

    @property
    def store_cpu(self) -> Doubles:
        return _over(self.store_seconds, self.rates.store_cores * self.rates.store_speed)

    @property
    def seconds(self) -> Doubles:
        """How long each plan takes."""
        found: Doubles = np.maximum.reduce([self.trainer, self.link, self.trainer_cpu, self.store_cpu])
        return found

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """Which plans keep within the store's cap; a hair below it, because sums are rounded."""
        spent = self.store_seconds / self.rates.store_speed
        found: NDArray[np.bool_] = spent <= self.rates.cap(self.visits) * (1 - 1e-9)
        return found

    def first_best(self) -> int:
        """The quickest plan that is allowed, the earliest of equals; 0 if none is."""
        return int(np.argmin(np.where(self.allowed, self.seconds, np.inf)))


@dataclass(frozen=True)
class Load:
    """What one plan asks of the four resources in one epoch."""

    visits: float
    bytes: float
    trainer_seconds: float
    store_seconds: float
    rates: Rates

    @property
    def times(self) -> dict[str, float]:
        """Seconds that each of the four needs."""
        return {
            "trainer": self.visits / self.rates.trainer,
            "store CPU": _one_over(self.store_seconds, self.rates.store_cores * self.rates.store_speed),
            "trainer CPU": _one_over(self.trainer_seconds, self.rates.trainer_cores),
            "link": _one_over(self.bytes, self.rates.link),
        }

    @property
    def seconds(self) -> float:
        """How long the epoch takes."""
        return max(self.times.values())

    @property
    def bottleneck(self) -> str:
        """The slowest of the four; of equals, the one that offloading cannot help."""
        times = self.times
        return max(times, key=lambda name: times[name])

    @property
    def margin(self) -> float:
        """How many times longer the bottleneck needs than the next slowest."""
        second, first = sorted(self.times.values())[-2:]
        if first == second:
            return 1.0
        return first / second if second > 0 else math.inf

    @property
    def keeps_cap(self) -> bool:
        """Whether the store's cap per visit holds."""
        return self.store_seconds / self.rates.store_speed <= self.rates.cap(self.visits)


def _over(amounts: Doubles, rate: float) -> Doubles:
    """Nothing takes no time, even at rate 0; rounding may leave a little less than nothing."""
    found = np.zeros(len(amounts))
    with np.errstate(divide="ignore"):
        np.divide(amounts, rate, out=found, where=amounts > 0)
    return found


def _one_over(amount: float, rate: float) -> float:
    return float(_over(np.array([amount]), rate)[0])
