"""A gradient as halves with one scale, or how it differs from the one before it.

With a full batch a gradient changes little from step to step, and so little is lost of the change: halves
have 11 bits of whatever they hold. What is coded is the difference to what a reader will have, so errors do
not add up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Vector = NDArray[np.float32]
Halves = NDArray[np.float16]

WHOLE, CHANGE = 0, 1
_TOP = 15
"""The largest number becomes at most 2 to this power; one 2^29 times smaller still keeps all 11 bits."""
_LEAST = -120


@dataclass(frozen=True, eq=False)
class Coded:
    """`values * scale` is a gradient (WHOLE), or what to add to the one before it (CHANGE)."""

    kind: int
    scale: float
    values: Halves

    def decode(self, before: Vector | None) -> Vector:
        """The gradient, given that of the step before; raises `ValueError` where that is needed and None."""
        wide: Vector = torch.from_numpy(self.values.copy()).float().numpy()  # ten times faster than numpy
        wide *= np.float32(self.scale)
        if self.kind == CHANGE:
            if before is None:
                raise ValueError("a change of a gradient without one before it")
            wide += before
        return wide


def encode(gradient: Vector, before: Vector | None) -> Coded:
    """The form that loses less; `before` is what a reader has of the last step, None for nothing."""
    if before is not None:
        change = gradient - before
        if _size(change) < 0.5 * _size(gradient):
            return _pack(CHANGE, change)
    return _pack(WHOLE, gradient)


def _pack(kind: int, values: Vector) -> Coded:
    largest = _size(values)
    # A power of two, so that scaling itself loses nothing; and one whose inverse is a number.
    scale = float(np.ldexp(1.0, max(int(np.frexp(largest)[1]) - _TOP, _LEAST))) if largest > 0 else 1.0
    return Coded(kind, scale, (values * np.float32(1 / scale)).astype(np.float16))


def _size(values: Vector) -> float:
    return float(np.max(np.abs(values), initial=0.0))
