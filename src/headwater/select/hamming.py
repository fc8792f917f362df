"""Which hashes of the same label differ in a few bits only.

In a class of up to `WHOLE` different samples every pair is looked at, one word against one word at first. In
a larger one the hashes are sorted, from the first bit on and from several others, and only neighbours in
these orders are compared (Charikar 2002): time grows with the samples there, not with their pairs, and a few
of those that differ in as many bits as are allowed are missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.randomness import mix
from headwater.select.forest import Forest

Hashes = NDArray[np.uint64]
"""(n, views, words): hashes of whole pictures come first, and of each the word that says most."""
Places = NDArray[np.int64]
Pairs = tuple[Places, Places]
Labels = NDArray[np.integer[Any]]

WHOLE = 4096
"""Different samples of a class up to which each is compared with each."""
FAR = 18
"""Bits in which the first words of whole pictures may differ; beyond, their views are not looked at."""
_TURNS = range(0, 64, 8)
_NEIGHBOURS = 24
_NEAR = 10
"""Bits in which the first words of neighbours may differ to be looked at again."""
_CHUNK = 1 << 14
_BATCH = 1 << 15


def distances(left: Hashes, right: Hashes) -> Places:
    """Bits in which the hash of one whole picture differs from the closest view of the other, row by row."""
    found: Places = np.minimum(_count(left[:, :1] ^ right), _count(left ^ right[:, :1]))
    return found


def alike(left: Hashes, right: Hashes, *, most: int) -> NDArray[np.bool_]:
    """Which rows are within the distance, of those that are not far from each other at first sight."""
    marks: NDArray[np.bool_] = np.bitwise_count(left[:, 0, 0] ^ right[:, 0, 0]) <= FAR
    marks[marks] = distances(left[marks], right[marks]) <= most
    return marks


def _count(words: Hashes) -> Places:
    """Bits that are set in the view that has least."""
    found: Places = np.bitwise_count(words).sum(axis=2, dtype=np.int64).min(axis=1)
    return found


def join_hashes(forest: Forest, hashes: Hashes, labels: Labels, *, most: int) -> None:
    """Join samples of one label that are alike, or whose hashes are equal throughout."""
    places = _join_equal(forest, hashes, labels)
    order, sizes = _larger_first(labels[places])
    places = places[order]
    begin, end = np.searchsorted(-sizes, [-WHOLE, -1])  # behind the large classes; where no pair is left
    pairs = _all_pairs(hashes[places[begin:end], 0, 0], sizes[begin:end])
    _join_alike(forest, hashes, labels, _named(pairs, places[begin:end]), most=most)
    at = 0
    while at < begin:
        some = places[at : at + sizes[at]]
        pairs = _named(_neighbours(hashes[some, :, 0]), some)
        _join_alike(forest, hashes, labels, pairs, most=most)
        at += len(some)


def _join_equal(forest: Forest, hashes: Hashes, labels: Labels) -> Places:
    """Join what is equal, however much of it there is; places of the first of each, and of all others."""
    rows = hashes.reshape(len(hashes), -1)
    digests = mix(labels.astype(np.int64).view(np.uint64))
    for word in rows.T:
        digests = mix(digests ^ word)
    order = np.argsort(digests, kind="stable")
    before, after = order[:-1], order[1:]
    same = (digests[before] == digests[after]) & (labels[before] == labels[after])
    same[same] = (rows[before[same]] == rows[after[same]]).all(axis=1)
    forest.join(before[same], after[same])
    return np.sort(np.concatenate((order[:1], after[~same])))


def _larger_first(labels: Labels) -> tuple[Places, Places]:
    """An order in which classes are in one piece, the largest first; and the size of each one's class."""
    _, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
    sizes = counts[which]
    order = np.lexsort((which, -sizes))
    return order, sizes[order]


def _all_pairs(words: NDArray[np.uint64], sizes: Places) -> Iterator[Pairs]:
    """Rows in the same class, or in classes side by side, whose words are not far from each other."""
    for begin in range(0, len(words), _CHUNK):
        yield from _compare(words, begin, width=int(sizes[begin]) - 1, most=FAR)


def _neighbours(words: NDArray[np.uint64]) -> Iterator[Pairs]:
    """Rows of which some view is a neighbour of another's, from wherever the bits are read."""
    views = words.shape[1]
    flat = words.ravel()
    for turn in _TURNS:
        turned = (flat << np.uint64(turn)) | (flat >> np.uint64(-turn % 64))
        order = np.argsort(turned)
        rows, turned = order // views, turned[order]
        for begin in range(0, len(turned), _CHUNK):
            for left, right in _compare(turned, begin, width=_NEIGHBOURS, most=_NEAR):
                yield rows[left], rows[right]


def _compare(words: NDArray[np.uint64], begin: int, *, width: int, most: int) -> Iterator[Pairs]:
    """Of a chunk of rows and up to `width` rows behind each, those that differ in at most `most` bits."""
    for step in range(1, width + 1):
        end = min(begin + _CHUNK, len(words) - step)
        if end <= begin:
            return
        differing = np.bitwise_count(words[begin:end] ^ words[begin + step : end + step])
        (found,) = np.nonzero(differing <= most)
        if len(found):
            yield found + begin, found + (begin + step)


def _named(pairs: Iterable[Pairs], places: Places) -> Iterator[Pairs]:
    """The same pairs by place, some thousands at a time."""
    held: list[Pairs] = []
    count = 0
    for pair in pairs:
        held.append(pair)
        count += len(pair[0])
        if count >= _BATCH:
            yield _gather(held, places)
            held, count = [], 0
    if held:
        yield _gather(held, places)


def _gather(held: list[Pairs], places: Places) -> Pairs:
    left, right = (np.concatenate(side) for side in zip(*held, strict=True))
    return places[left], places[right]


def _join_alike(forest: Forest, hashes: Hashes, labels: Labels, pairs: Iterator[Pairs], *, most: int) -> None:
    for left, right in pairs:
        separate = forest.apart(left, right) & (labels[left] == labels[right])
        left, right = left[separate], right[separate]
        close = alike(hashes[left], hashes[right], most=most)
        forest.join(left[close], right[close])
