"""How a gradient changes with the weights, learnt from a few pairs: L-BFGS in compact form.

With pairs s (a move of the weights) and y (what it did to the gradient) as rows of S and Y, a first guess
A, D the diagonal of S Y' and L what lies below it,

    B = A - [A S'  Y'] [ S A S'   L ]^-1 [ S A ]
                       [ L'      -D ]    [ Y   ]

(Byrd, Nocedal and Schnabel, Mathematical Programming 1994; used so by DeltaGrad, ICML 2020, with a multiple
of one for A). The matrix in the middle changes with a pair only, so a product costs 4 m p multiplications
and one with A. B bends upwards whatever the pairs are.
"""

from __future__ import annotations

import numpy as np

from headwater.plan.replay.curvature import Correction, Known, invert

_SINGULAR = 1e-12
"""Directions of the inner matrix below this share of its largest are left out: pairs that say the same."""


def lbfgs(known: Known) -> Correction:
    """A `Form`."""
    wide = known.moves.astype(np.float64)
    both = wide @ known.changes.T.astype(np.float64)
    below = np.tril(both, -1)
    squares = wide @ known.bent.T.astype(np.float64)
    middle = np.block([[squares, below], [below.T, -np.diag(np.diag(both))]])
    basis = np.concatenate([known.bent, known.changes])
    return Correction(basis, -invert((middle + middle.T) / 2, _SINGULAR).astype(np.float32) @ basis)
