"""Samples in parts that are chosen from apart: classes, or random pieces of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.select.choosing import by_class, part_of
from headwater.select.samples import Ints, Samples

_CELLS = 1 << 19
"""Pairs of samples in a stack: enough that no time is lost between stacks, little enough for a cache."""
STRETCH = 8192
"""Samples of the parts that are chosen from together: enough of them to fill stacks."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Runs of `order`, each `sizes` long, of each of which `budgets` samples are to be taken.

    The order within a part should be random: pieces are runs of it, and who comes next is as good a draw as
    any. What is chosen then depends on the samples only, not on the rows that they lie in.
    """

    order: Ints
    sizes: Ints
    budgets: Ints

    def __post_init__(self) -> None:
        if not (self.budgets <= self.sizes).all() or not (self.budgets >= 1).all():
            raise WrongUse("a part gives at least one sample and at most all it has")

    @classmethod
    def whole(cls, count: int, budget: int) -> Parts:
        """One part, in the order of the rows."""
        return cls(np.arange(count, dtype=np.int64), np.array([count]), np.array([budget]))

    @classmethod
    def of_classes(cls, samples: Samples, places: Ints, *, share: float) -> Parts:
        """A part for each class that some of `places` have, each in an order of this epoch."""
        drawn = places[np.argsort(samples.draw()[places])]
        order, begins = by_class(samples.labels[drawn])
        sizes = np.diff(begins)
        return cls(drawn[order], sizes, part_of(sizes, share))

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def begins(self) -> Ints:
        return np.cumsum(self.sizes) - self.sizes

    def where(self, wanted: NDArray[np.bool_]) -> Parts:
        """Some of the parts."""
        return Parts(self.order[np.repeat(wanted, self.sizes)], self.sizes[wanted], self.budgets[wanted])

    def stretches(self) -> Iterator[Parts]:
        """Parts that follow each other, so many together as have about `STRETCH` samples, at least one."""
        (firsts,) = np.nonzero(np.diff(self.begins // STRETCH, prepend=-1))
        ends = np.cumsum(self.sizes)
        for first, last in pairwise((*firsts.tolist(), len(self))):
            order = self.order[ends[first] - self.sizes[first] : ends[last - 1]]
            yield Parts(order, self.sizes[first:last], self.budgets[first:last])

    def split(self, chunk: int) -> Parts:
        """Each part in pieces of one size, at most `chunk`, or as large as it takes to give one sample."""
        pieces = np.minimum(-(-self.sizes // chunk), self.budgets)
        return Parts(self.order, _divide(self.sizes, pieces), _divide(self.budgets, pieces))

    def stacks(self, cells: int = _CELLS) -> Iterator[tuple[Ints, int]]:
        """Parts of one size and one budget side by side, a row of places each; and that budget.

        `cells` is how many pairs of samples of one part a stack holds, unless one part has more.
        """
        kinds, kind = np.unique(np.stack((self.sizes, self.budgets)), axis=1, return_inverse=True)
        begins = self.begins
        for number, (size, budget) in enumerate(kinds.T.tolist()):
            alike = begins[kind == number]
            together = max(1, cells // size**2)
            for first in range(0, len(alike), together):
                rows = alike[first : first + together, None] + np.arange(size)
                yield self.order[rows], budget


def _divide(totals: Ints, pieces: Ints) -> Ints:
    """Each total in so many numbers that differ by one at most, the larger ones first."""
    place = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    least, rest = np.divmod(totals, pieces)
    found: Ints = np.repeat(least, pieces) + (place < np.repeat(rest, pieces))
    return found


@dataclass(frozen=True, eq=False)
class Picks:
    """Places in the order of taking; `sizes` say for how many samples each stands, itself included."""

    places: Ints
    sizes: Ints

    @classmethod
    def joined(cls, some: list[Picks]) -> Picks:
        empty = np.empty(0, np.int64)
        return cls(
            np.concatenate([empty, *(one.places for one in some)]),
            np.concatenate([empty, *(one.sizes for one in some)]),
        )


Vectors = NDArray[np.floating[Any]]
