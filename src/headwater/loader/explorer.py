"""Which samples try which way, until each way is known well enough to plan with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headwater.measure.profile import Seen
from headwater.plan.offload import Offload

ENOUGH = 8
"""Samples of a way that tell what it costs."""
_ASKED = 12  # some come late, or are pushed back
_TRIES = 4 * _ASKED  # a store that has no cores to spare pushes samples back: it is not asked for ever
_FIRST = 4  # call that tries ways: whoever is slower than the link has batches in stock by then
_EVERY = 2  # of the samples of a call, one of so many tries a way; fewer at a store with little CPU

Counts = NDArray[np.int64]


class Explorer:
    """Goes through the ways, one after the other; `possible` and `cores` are those of each store."""

    def __init__(
        self, ways: Sequence[Offload], possible: Sequence[NDArray[np.bool_]], cores: Sequence[float]
    ) -> None:
        self._possible = possible
        self._every = [max(_EVERY, math.ceil(1 / max(some, 0.01))) for some in cores]
        self._calls = 0
        # what will probably be used comes first: at a small store it may take long to try all
        self._order = np.array(
            sorted(range(1, len(ways)), key=lambda way: ways[way].codec == "none"), np.intp
        )
        self._asked, self._answered = np.zeros((2, len(ways)), np.int64)
        self._anywhere: NDArray[np.bool_] = np.zeros(len(ways), np.bool_)
        for some in possible:
            self._anywhere |= some

    def done(self, known: Counts) -> bool:
        """Whether no way is worth another try; `known` counts samples of each, of earlier runs too."""
        under_way = self._asked > self._answered
        missing = self._anywhere & (known < ENOUGH) & ((self._asked < _TRIES) | under_way)
        return not missing[1:].any()

    def take(self, owners: NDArray[np.intp], known: Counts) -> NDArray[np.uint8]:
        """A way to try for each sample, or 0; `owners` says which store has it.

        The first calls, and every second one, are for files alone, which tell what the link can do.
        """
        ways = np.zeros(len(owners), np.uint8)
        self._calls += 1
        trying = self._calls >= _FIRST and self._calls % 2 == 0
        for site in range(len(self._possible) if trying else 0):
            (rows,) = np.nonzero(owners == site)
            for row in rows[:: self._every[site]].tolist():
                ways[row] = way = self._pick(site, known)
                if not way:
                    break
                self._asked[way] += 1
        return ways

    def forget_unanswered(self) -> None:
        """What was asked for and has not come will not come."""
        self._asked = self._answered.copy()

    def came(self, seen: Seen) -> None:
        """Some of the samples came, this way or pushed back."""
        self._answered += np.bincount(seen.ways, minlength=len(self._answered))

    def _pick(self, site: int, known: Counts) -> int:
        """The first way of which too little is known or under way; 0 if there is none."""
        under_way = np.maximum(self._asked - self._answered, 0)
        wanted = self._possible[site] & (known + under_way < _ASKED) & (self._asked < _TRIES)
        found = self._order[wanted[self._order]]
        return int(found[0]) if len(found) else 0
