"""Photos that come in periods while their kinds change: those that are known grow rarer, others take over."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.data.synthetic import write_photos
from headwater.engine.crew import available_cores
from headwater.store import Dataset, open

Ids = NDArray[np.int64]

PERIODS = 6
_KINDS = 12


@dataclass(frozen=True, eq=False)
class Stream:
    """Photos in a folder, and the ids of those of each period; `known` are the kinds of the first one."""

    folder: Path
    data: Dataset
    periods: tuple[Ids, ...]
    known: frozenset[str]

    @classmethod
    def write(cls, folder: Path, *, count: int, known: Collection[str], seed: int) -> Stream:
        """So many photos of twelve kinds, the known ones among them; what is there already is not written."""
        write_photos(folder, count=count, classes=_KINDS, seed=seed, threads=available_cores())
        data = open(folder)
        return cls(folder, data, divide(data, known), frozenset(known))

    @property
    def kinds(self) -> NDArray[np.str_]:
        """The kind of each photo, in order of id."""
        names: NDArray[np.str_] = np.array(self.data.classes)[self.data.labels]
        return names[np.argsort(self.data.ids)]

    def part(self, period: int) -> NDArray[np.bool_]:
        """Which photos, in order of id, are of a period."""
        return np.isin(np.sort(self.data.ids), self.periods[period])

    def before(self, period: int) -> Ids:
        """The ids of all photos that came before a period."""
        return np.concatenate(self.periods[:period])

    def share_of_new(self, period: int) -> float:
        """How many of a period's photos are of kinds that were not known."""
        return float(np.mean(~np.isin(self.kinds[self.part(period)], list(self.known))))


def divide(data: Dataset, known: Collection[str]) -> tuple[Ids, ...]:
    """The ids of each period, about as many in each: in the first all are of known kinds, then ever fewer."""
    order = np.argsort(data.ids)  # ids are hashes, so this is an order by chance
    ids, labels = data.ids[order], data.labels[order]
    new = ~np.isin(np.array(data.classes), list(known))[labels]
    shares = np.linspace(0.0, 2 * new.mean(), PERIODS)
    parts = zip(_deal(ids[~new], 1 - shares), _deal(ids[new], shares), strict=True)
    return tuple(np.concatenate(pair) for pair in parts)


def _deal(ids: Ids, shares: NDArray[np.float64]) -> list[Ids]:
    """All of them, in parts whose sizes are to each other as the shares are."""
    ends = np.round(np.cumsum(shares) / shares.sum() * len(ids)).astype(np.int64)
    return np.split(ids, ends[:-1])
