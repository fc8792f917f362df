"""Groups of near-duplicates: samples of one label that are alike, by their hashes or by their features.

A group is a sample and those behind it that are alike to it and in no earlier group: leaders in the sense of
Hartigan (1975). What only a chain of alike samples connects is not in one group, or a long chain would be.
IOWA (Hu et al.) uses such groups and leaves open how they are found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.select.cosine import Vectors, join_vectors, near
from headwater.select.forest import Forest
from headwater.select.hamming import Hashes, alike, join_hashes

Ints = NDArray[np.int64]
Groups = NDArray[np.int32]

ALIKE = 18
"""Bits of 128 in which hashes of the same picture may differ: see `headwater.data.image.fingerprint`."""
COSINE = 0.95
CAP = 32
"""Samples of a group; one that would be larger is divided."""
_ROUNDS = 64
"""Groups that what is connected falls into at most; what is left then is alone."""
_BATCH = 1 << 15

Alike = Callable[[Ints, Ints], NDArray[np.bool_]]
"""Which of these pairs of places are alike."""


def group_hashes(
    hashes: Hashes, labels: Ints, *, most: int = ALIKE, cap: int = CAP, ids: Ints | None = None
) -> Groups:
    """A number for each sample, the same for all of a group, by its first member; -1 for what is alone.

    `hashes` are (n, views, words) as `hash_thumbnails` makes them. Samples without a label, -1, are
    a class too. With `ids`, leaders are looked for in the order of these: the groups are then the same in
    whatever order the samples come.
    """
    if ids is not None:
        order = np.argsort(ids, kind="stable")
        return _scatter(order, group_hashes(hashes[order], labels[order], most=most, cap=cap))
    if hashes.ndim != 3 or hashes.dtype != np.uint64:
        raise WrongUse(f"hashes are {hashes.dtype} of {hashes.shape}; give uint64 of (n, views, words)")
    _check(labels, len(hashes), cap)
    forest = Forest(len(hashes))
    if len(hashes) > 1:
        join_hashes(forest, hashes, labels, most=most)
    leaders = _lead(forest.firsts, lambda left, right: alike(hashes[left], hashes[right], most=most))
    return _number(leaders, cap)


def group_vectors(
    vectors: Vectors,
    labels: Ints,
    *,
    least: float = COSINE,
    cap: int = CAP,
    seed: int = 0,
    ids: Ints | None = None,
) -> Groups:
    """The same by features, of any length: alike are those whose cosine is at least `least`."""
    if ids is not None:
        order = np.argsort(ids, kind="stable")
        return _scatter(order, group_vectors(vectors[order], labels[order], least=least, cap=cap, seed=seed))
    if vectors.ndim != 2 or not 0 < least <= 1:
        raise WrongUse(f"vectors are of {vectors.shape}, least is {least}; give (n, width), and above 0 to 1")
    _check(labels, len(vectors), cap)
    forest = Forest(len(vectors))
    if len(vectors) > 1:
        join_vectors(forest, vectors, labels, least=least, seed=seed)
    leaders = _lead(forest.firsts, lambda left, right: near(vectors[left], vectors[right], least=least))
    return _number(leaders, cap)


def renumber(groups: Groups) -> Groups:
    """The same groups, numbered by their first members; one with a single member is none."""
    (members,) = np.nonzero(groups >= 0)
    _, first, which, counts = np.unique(
        groups[members], return_index=True, return_inverse=True, return_counts=True
    )
    kept = counts[which] > 1
    found = np.full(len(groups), -1, np.int32)
    found[members[kept]] = np.searchsorted(np.sort(first[counts > 1]), first[which[kept]])
    return found


def _scatter(order: Ints, groups: Groups) -> Groups:
    """Groups of samples that were put into this order, for them as they came."""
    found = np.empty_like(groups)
    found[order] = groups
    return renumber(found)


def _check(labels: NDArray[np.integer[Any]], count: int, cap: int) -> None:
    if labels.shape != (count,):
        raise WrongUse(f"there are {count} samples and labels of {labels.shape}; give one for each")
    if cap < 2:
        raise WrongUse(f"cap is {cap}; a group has at least 2 samples")


def _lead(firsts: Ints, are_alike: Alike) -> Ints:
    """Of each sample the first that leads it, or itself; only those that are connected are looked at.

    In every round the first that is left of what is connected takes all that are alike to it.
    """
    leaders = np.arange(len(firsts))
    order = np.argsort(firsts, kind="stable")
    order = order[np.bincount(firsts, minlength=len(firsts))[firsts[order]] > 1]
    for _ in range(_ROUNDS):
        begins = np.flatnonzero(np.diff(firsts[order], prepend=-1))
        lead = np.repeat(order[begins], np.diff(begins, append=len(order)))
        taken = lead == order
        for begin in range(0, len(order), _BATCH):
            some = slice(begin, begin + _BATCH)
            taken[some] |= are_alike(lead[some], order[some])
        leaders[order[taken]] = lead[taken]
        order = order[~taken]
    return leaders


def _number(firsts: Ints, cap: int) -> Groups:
    """Groups by their first member; those past the cap in pieces, members of which follow each other."""
    order = np.argsort(firsts, kind="stable")
    begins = np.flatnonzero(np.diff(firsts[order], prepend=-1))
    ranks = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    leaders = order[np.arange(len(order)) - ranks % cap]  # the first of each one's piece
    counts = np.bincount(leaders, minlength=len(firsts))
    numbers = np.cumsum(counts > 1) - 1
    groups = np.empty(len(firsts), np.int32)
    groups[order] = np.where(counts[leaders] > 1, numbers[leaders], -1)
    return groups
