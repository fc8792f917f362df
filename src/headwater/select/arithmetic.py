"""Powers and logarithms of + - x / and square roots alone: the same bits on every CPU.

Every rank selects for itself, and all must come to the same samples; numpy's own differ between CPUs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_DIGITS = 24
_TERMS = 8
_HALF_ROOT = 0.5**0.5
_PER_LN2 = 1.4426950408889634


def power(base: ArrayLike, exponent: ArrayLike) -> NDArray[np.float64]:
    """`base ** exponent` for both at least 0; the exponent is cut off after 24 binary digits."""
    root, rest = (np.array(part, np.float64) for part in np.broadcast_arrays(base, exponent))
    whole = np.floor(rest)
    found, rest = _whole_power(root, whole), rest - whole
    for _ in range(_DIGITS):
        np.sqrt(root, out=root)
        rest *= 2
        digit = rest >= 1
        found[digit] *= root[digit]
        rest -= digit
    return found


def _whole_power(base: NDArray[np.float64], exponent: NDArray[np.float64]) -> NDArray[np.float64]:
    found, square, left = np.ones_like(base), base.copy(), exponent.astype(np.int64)
    while left.any():
        found[left % 2 == 1] *= square[left % 2 == 1]
        left //= 2
        if left.any():
            square *= square
    return found


def log2(values: ArrayLike) -> NDArray[np.float64]:
    """To about 14 digits, of what is above 0; a finite number for 0, so that `x * log2(x)` is 0 there."""
    mantissa, exponent = np.frexp(np.asarray(values, np.float64))
    low = mantissa < _HALF_ROOT
    mantissa = np.where(low, 2 * mantissa, mantissa)
    ratio = (mantissa - 1) / (mantissa + 1)
    square, series = ratio * ratio, np.zeros_like(ratio)
    for term in range(_TERMS, -1, -1):
        series = series * square + 1 / (2 * term + 1)
    found: NDArray[np.float64] = exponent - low + 2 * _PER_LN2 * ratio * series
    return found
