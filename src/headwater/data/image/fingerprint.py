"""What tells alike pictures from others in 96 bytes: hashes of a thumbnail, whole and from five sides.

A hash is the signs of the lowest frequencies of a discrete cosine transform, as in the perceptual hash of
Zauner (2010), here of 128 of them. Compression and scaling leave it nearly as it is, a shifted crop does not;
but where one picture is the other less a few percent, its hash is close to one of the other without a strip
along two of its sides. All is whole numbers: the same bytes on every machine.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse

Hashes = NDArray[np.uint64]
"""(n, views, words): see `hash_thumbnails`."""

EDGE = 40
"""Pixels of an edge of the thumbnail that is hashed."""
_CUT = 2
_CORNERS = ((0, 0), (0, _CUT), (_CUT, 0), (_CUT, _CUT), (_CUT // 2, _CUT // 2))
VIEWS = ((0, 0, EDGE), *((top, left, EDGE - _CUT) for top, left in _CORNERS))
"""Top, left and edge of what each hash sees: all of it, and five times all but a strip of five percent."""
WORDS = 2
_SCALE = 1 << 10
_FREQUENCIES = 13
"""Down and across; of both together, the lowest are hashed."""


def hash_thumbnails(thumbnails: NDArray[np.uint8]) -> Hashes:
    """The hashes of grey thumbnails (n, EDGE, EDGE): (n, views, words), that of the whole thumbnail first.

    The first word has the lower frequencies, and the lowest of a word is its highest bit.
    """
    if thumbnails.shape[1:] != (EDGE, EDGE) or thumbnails.dtype != np.uint8:
        raise WrongUse(
            f"thumbnails are {thumbnails.dtype} of {thumbnails.shape}; hashes are made of uint8 of "
            f"(n, {EDGE}, {EDGE})"
        )
    found = np.empty((len(thumbnails), len(VIEWS), WORDS), np.uint64)
    for view, (top, left, edge) in enumerate(VIEWS):
        found[:, view] = _hash(thumbnails[:, top : top + edge, left : left + edge])
    return found


def _hash(pixels: NDArray[np.uint8]) -> Hashes:
    waves, area = cosines(pixels.shape[1]).T, pixels.shape[1] * pixels.shape[2]
    # Whole numbers below 2^53: floating point is exact here, in whichever order it adds.
    values = pixels.astype(np.float64, order="C")
    level = area * values - values.sum(axis=(1, 2), keepdims=True)  # rounded waves do not add up to nothing
    across = level @ waves
    both = np.ascontiguousarray(across.swapaxes(1, 2)) @ waves
    bits = np.ascontiguousarray(both[:, *_lowest()] > 0)
    return np.packbits(bits, axis=1).view(">u8").astype(np.uint64)


@cache
def cosines(edge: int) -> NDArray[np.float64]:
    """The lowest waves of a cosine transform of this length, in whole numbers."""
    angles = np.arange(_FREQUENCIES)[:, None] * (2 * np.arange(edge) + 1)
    waves: NDArray[np.float64] = np.round(_SCALE * np.cos(np.pi / (2 * edge) * angles))
    return waves


@cache
def _lowest() -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Frequencies across and down, from the lowest on; brightness, which is none, is left out."""
    across, down = (each.ravel() for each in np.indices((_FREQUENCIES, _FREQUENCIES)))
    order = np.lexsort((down, down**2 + across**2))[1 : 64 * WORDS + 1]
    return across[order], down[order]
