"""Segments of all samples in order of efficiency, and how many of them to take, without sorting them all.

Efficiencies are counted into narrow bins first: sums by bin say in which bin a rule stops. Only the
segments of that bin and its neighbour are then sorted. So memory does not grow with the number of segments,
and time is linear, unless all efficiencies are nearly the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.plan.offload.load import Load, Loads
from headwater.plan.offload.segments import Block, Segments
from headwater.plan.offload.workload import Choice, Workload

Doubles = NDArray[np.float64]
Cut = Callable[[Block], Iterator[Segments]]
"""Makes the segments of a block, those of one sample in order of falling efficiency."""
Stop = Callable[[Loads], int]
"""How many segments to take, given the loads after 0, 1, 2, ... of them."""

_BINS = 0x7F80 + 1
"""The upper 16 bits of a float32 that is not negative, up to infinity: bins less than 1 % wide."""


@dataclass(frozen=True, eq=False)
class Ladder:
    """The bins that hold segments, the most efficient first, and the loads before, between and after them."""

    work: Workload
    cut: Cut
    bins: NDArray[np.intp]
    loads: Loads

    @classmethod
    def survey(cls, work: Workload, cut: Cut) -> Ladder:
        """Look at every sample once."""
        sums, counts = np.zeros((3, _BINS)), np.zeros(_BINS, np.int64)
        for rows in work.options.blocks():
            some = _join([_NONE, *cut(Block.of(work, rows))])
            place = _bin_of(some.efficiency)
            counts += np.bincount(place, minlength=_BINS)
            for total, change in zip(sums, some.change, strict=True):
                total += np.bincount(place, weights=change, minlength=_BINS)
        bins = np.flatnonzero(counts)[::-1]
        return cls(work, cut, bins, loads_after(work.before, sums[:, bins]))

    @property
    def edges(self) -> Doubles:
        """An efficiency between what is taken and what is not, at each place between bins."""
        tops = np.concatenate([self.bins[:1] + 1, self.bins])
        bits: NDArray[np.uint32] = np.minimum(tops, _BINS - 1).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).astype(np.float64)

    def take(self, bins: int) -> Choice:
        """All segments of the first so many bins."""
        return self._split(self._threshold(bins), self._threshold(bins))[0]

    def climb(self, stop: Stop) -> Choice:
        """As many segments as the rule says, to the single segment."""
        about = stop(self.loads)
        least, most = max(about - 1, 0), min(about + 1, len(self.bins))
        choice, near = self._split(self._threshold(least), self._threshold(most))
        # stable: equals stay in order of samples, and segments of a sample in theirs
        order = np.argsort(-near.efficiency, kind="stable")
        loads = loads_after(_load_at(self.loads, least), near.change[:, order])
        taken = order[: stop(loads)]
        choice[near.rows[taken]] = near.targets[taken]  # of several of one sample the last stays
        return choice

    def _threshold(self, bins: int) -> int:
        """The lowest of the first so many bins."""
        return int(self.bins[bins - 1]) if bins else _BINS

    def _split(self, sure: int, near: int) -> tuple[Choice, Segments]:
        """Take every segment from bin `sure` up; gather those from there down to bin `near`."""
        choice, gathered = self.work.raw(), [_NONE]
        for rows in self.work.options.blocks():
            for some in self.cut(Block.of(self.work, rows)):
                place = _bin_of(some.efficiency)
                taken = place >= sure
                choice[some.rows[taken]] = some.targets[taken]
                if near < sure:
                    gathered.append(some.where((place >= near) & ~taken))
        return choice, _join(gathered)


_EMPTY = np.zeros(0, np.intp)
_NONE = Segments(_EMPTY, _EMPTY, np.zeros(0), np.zeros((3, 0)))


def _join(parts: list[Segments]) -> Segments:
    return Segments(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.targets for part in parts]),
        np.concatenate([part.efficiency for part in parts]),
        np.concatenate([part.change for part in parts], axis=1),
    )


def _bin_of(efficiency: Doubles) -> NDArray[np.intp]:
    with np.errstate(over="ignore", under="ignore"):
        bits = efficiency.astype(np.float32).view(np.uint32)
    return (bits >> 16).astype(np.intp)


def loads_after(start: Load, changes: Doubles) -> Loads:
    """Loads after none, one, two ... of the changes."""
    begin = np.array([[start.bytes], [start.trainer_seconds], [start.store_seconds]])
    sent, trainer, store = np.concatenate([begin, changes], axis=1).cumsum(axis=1)
    return Loads(start.visits, sent, trainer, store, start.rates)


def _load_at(loads: Loads, place: int) -> Load:
    sent, trainer, store = (
        float(column[place]) for column in (loads.bytes, loads.trainer_seconds, loads.store_seconds)
    )
    return Load(loads.visits, sent, trainer, store, loads.rates)
