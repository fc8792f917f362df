"""What to do with near-duplicates.

Where training waits for the processor, one of a group is visited for all; where it waits for data, a member
that is at hand is served for one that is not. Both are IOWA's (Hu et al.): RRemove and RRepeat.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.select.samples import Ints, Marks, Samples

REDUNDANCY = ("keep", "drop")
"""Whether all near-duplicates are visited, or one of each group."""
_TURN, _STAND_IN = 201, 202  # what is drawn here, by number


def check_redundancy(given: str) -> None:
    """Raise `WrongUse` for what cannot be done with near-duplicates."""
    if given not in REDUNDANCY:
        raise WrongUse(f"redundancy is {given!r}; choose from {', '.join(REDUNDANCY)}")


def representatives(samples: Samples, places: Ints | None = None) -> tuple[Ints, Ints]:
    """Places that are left of these, or of all, if each group is visited once; and for how many each stands.

    The members take turns, epoch by epoch, so that none is lost. None stands for one of another label.
    """
    some = samples if places is None else samples.take(places)
    (members,) = np.nonzero(some.group >= 0)
    turns = replace(some, epoch=0).draw(_TURN)
    order = members[np.lexsort((turns[members], some.labels[members], some.group[members]))]
    begins = _begins(some.group[order], some.labels[order])
    counts = np.diff(begins, append=len(order))
    stood = np.ones(len(some), np.int64)
    stood[order] = 0
    stood[order[begins + some.epoch % counts]] = counts
    (kept,) = np.nonzero(stood)
    return kept if places is None else places[kept], stood[kept]


def stand_ins(
    samples: Samples, places: Ints, *, cached: Marks, read: NDArray[np.integer[Any]], patience: int
) -> Ints:
    """For each of the places another that is cached and of its group and label, or -1: then it serves itself.

    `cached` and `read` have a row per sample; `read` is the epoch of the last time that it was itself served,
    -1 for never. A sample is served itself if it is cached, if it never was, or if it was not for `patience`
    epochs. Where several could stand in for it, one is drawn.
    """
    if patience < 0:
        raise WrongUse(f"patience is {patience}; it is a number of epochs, at least 0")
    found = np.full(len(places), -1, np.int64)
    waited = samples.epoch - read[places]
    (asking,) = np.nonzero(~cached[places] & (read[places] >= 0) & (waited <= patience))
    keys = _keys(samples)
    asking = asking[keys[places[asking]] >= 0]
    (offered,) = np.nonzero(cached & (keys >= 0))
    order = offered[np.argsort(keys[offered], kind="stable")]
    asked = keys[places[asking]]
    first = np.searchsorted(keys[order], asked, side="left")
    counts = np.searchsorted(keys[order], asked, side="right") - first
    (able,) = np.nonzero(counts)
    drawn = samples.draw(_STAND_IN)[places[asking[able]]]
    found[asking[able]] = order[first[able] + (drawn * counts[able]).astype(np.int64)]
    return found


def _keys(samples: Samples) -> Ints:
    """The same number for samples of one group and label; -1 for those of no group."""
    keys = np.full(len(samples), -1, np.int64)
    (members,) = np.nonzero(samples.group >= 0)
    order = members[np.lexsort((samples.labels[members], samples.group[members]))]
    begins = _begins(samples.group[order], samples.labels[order])
    keys[order] = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(order)))
    return keys


def _begins(groups: NDArray[np.int32], labels: Ints) -> Ints:
    """Where in this order another group or another label begins."""
    if not len(groups):
        return np.empty(0, np.int64)
    new = (groups[1:] != groups[:-1]) | (labels[1:] != labels[:-1])
    return np.concatenate(([0], np.flatnonzero(new) + 1))
