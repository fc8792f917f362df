"""What a policy decides on: the options, the rates, and how often each sample is visited."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.plan.offload.load import Load, Rates
from headwater.plan.offload.options import Options

Choice = NDArray[np.uint8]
"""For each sample, which of its options: a column of `Options`."""


@dataclass(frozen=True, eq=False)
class Workload:
    """One epoch: every sample is visited `visits` times, which may be a fraction."""

    options: Options
    rates: Rates
    visits: NDArray[np.float64]

    @classmethod
    def of(cls, options: Options, *, rates: Rates, weights: NDArray[np.generic] | None) -> Workload:
        """Checked; without weights every sample is visited once."""
        if weights is None:
            # takes no memory
            return cls(options, rates, np.broadcast_to(np.float64(1), len(options)))
        visits = np.asarray(weights, np.float64)
        if visits.shape != (len(options),):
            raise WrongUse(
                f"weights have the shape {visits.shape}; {(len(options),)} is needed, one per sample"
            )
        if not (np.isfinite(visits).all() and (visits >= 0).all()):
            raise WrongUse("a weight is negative or not finite; weights are visits per epoch, so at least 0")
        return cls(options, rates, visits)

    def thinned(self, most: int) -> Workload:
        """About as many samples as asked for, evenly spread; of the same rates, so all times shrink alike."""
        some = slice(None, None, -(-len(self.options) // most) or 1)
        return Workload(self.options.take(some), self.rates, self.visits[some])

    @cached_property
    def before(self) -> Load:
        """What it asks without any offloading."""
        return self.load(self.raw())

    def raw(self) -> Choice:
        """Every sample as it is."""
        return np.zeros(len(self.options), np.uint8)

    def load(self, choice: Choice) -> Load:
        """What a choice asks of the four resources."""
        totals = np.zeros(3)
        for rows in self.options.blocks():
            place = np.arange(rows.stop - rows.start), choice[rows]
            for which, column in enumerate(self.columns(rows)):
                totals[which] += self.visits[rows] @ column[place].astype(np.float64)
        sent, trainer, store = (float(total) for total in totals)
        return Load(float(self.visits.sum()), sent, trainer, store, self.rates)

    def columns(self, rows: slice) -> tuple[NDArray[np.floating], ...]:
        """Bytes, trainer seconds and store seconds of some samples."""
        options = self.options
        return options.bytes[rows], options.trainer_seconds[rows], options.store_seconds[rows]


class Policy(Protocol):
    """A rule by which samples are offloaded."""

    def choose(self, work: Workload) -> Choice:
        """An option for every sample, one that it has."""
        ...

    def explain(self, before: Load, after: Load) -> str:
        """Why it stopped where it did, in a few words; only asked where something is offloaded."""
        ...
