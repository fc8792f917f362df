"""From one option of a sample to the next: what each such step saves, and what it costs the store.

Steps of a sample come in order of falling efficiency (saved per store second), so whoever takes the most
efficient steps of all samples never takes a later step of a sample without the earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.plan.offload.workload import Workload

Doubles = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Segments:
    """Steps of different samples: `rows` are the samples, `targets` the options to which they lead."""

    rows: Rows
    targets: Rows
    efficiency: Doubles
    change: Doubles
    """Of bytes, trainer seconds and store seconds, times visits: three rows."""

    def where(self, keep: NDArray[np.bool_]) -> Segments:
        return Segments(self.rows[keep], self.targets[keep], self.efficiency[keep], self.change[:, keep])


@dataclass(frozen=True, eq=False)
class Block:
    """Visited samples of a slice, a row per option, so that every column of `Options` lies in one piece."""

    rows: Rows
    visits: Doubles
    amounts: Doubles
    """[bytes, trainer seconds, store seconds][option][sample]"""

    @classmethod
    def of(cls, work: Workload, rows: slice) -> Block:
        visited = np.flatnonzero(work.visits[rows] > 0)
        whole = len(visited) == rows.stop - rows.start
        columns = (column if whole else column[visited] for column in work.columns(rows))
        amounts = np.array([column.T for column in columns], np.float64)
        return cls(visited + rows.start, work.visits[rows][visited], amounts)

    def cost(self, per_byte: float, per_second: float) -> Doubles:
        """What is to be made small: seconds of link and trainer CPU. Infinite where there is no option."""
        sent, trainer, _ = self.amounts
        with np.errstate(invalid="ignore"):
            found = sent * per_byte + trainer * per_second
        return np.where(np.isinf(sent), np.inf, found)

    def step(self, where: Rows, begin: Rows, end: Rows, efficiency: Doubles) -> Segments:
        """From one option to another, for the samples at these places of the block."""
        change = self.amounts[:, end, where] - self.amounts[:, begin, where]
        return Segments(self.rows[where], end, efficiency, change * self.visits[where])


def hulls(block: Block, cost: Doubles) -> Iterator[Segments]:
    """The lower convex hull of (store seconds, cost) of every sample: the first segment of each, and so on.

    Gift wrapping: from where a sample stands to the option that saves most per store second, of equals to
    the cheapest, so that a hull has no two segments of one slope. Options are few, so the loop is over them.
    """
    where = np.arange(len(block.rows))
    store, here = block.amounts[2], np.zeros(len(where), np.intp)
    limit = np.full(len(where), np.inf)
    while len(where):
        best, efficiency = _steepest(store, cost, here)
        # rounding must not make a later segment look better than the one before it
        efficiency = np.minimum(efficiency, limit)
        on = best != here
        if not on.all():
            where, here, best, efficiency = where[on], here[on], best[on], efficiency[on]
            store, cost = store[:, on], cost[:, on]
        if len(where):
            yield block.step(where, here, best, efficiency)
        here, limit = best, efficiency


def _steepest(store: Doubles, cost: Doubles, here: Rows) -> tuple[Rows, Doubles]:
    """For each sample the option with the most saved per store second; where it stands if nothing saves."""
    places = np.arange(len(here))
    base_store, base_cost = store[here, places], cost[here, places]
    best, best_cost, steepest = here, base_cost, np.zeros(len(here))
    for option in range(1, len(store)):
        spent, there = store[option] - base_store, cost[option]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            slope = (base_cost - there) / spent
        better = (slope > steepest) | ((slope == steepest) & (there < best_cost))
        better &= (there < base_cost) & (spent >= 0)
        # `where` makes copies, and is still three times faster than assigning through a mask
        best, best_cost = np.where(better, option, best), np.where(better, there, best_cost)
        steepest = np.where(better, slope, steepest)
    return best, steepest


def single(block: Block, ways: list[int]) -> Iterator[Segments]:
    """One segment for every sample that has a smaller form: to the smallest, of equals to the earliest."""
    sent = block.amounts[0]
    best = np.array(ways)[np.argmin(sent[ways], axis=0)]
    where = np.flatnonzero(best != 0)
    end, begin = best[where], np.zeros(len(where), np.intp)
    with np.errstate(divide="ignore", over="ignore"):
        efficiency = (sent[0, where] - sent[end, where]) / block.amounts[2, end, where]
    yield block.step(where, begin, end, efficiency)
