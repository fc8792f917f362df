"""How a gradient changes with the weights, from what it did along the last few moves: multi-secant form.

With unit moves S and their changes Y as rows, and a first guess A, a vector is taken apart into what lies
in the span of S, of which the change is known, and a rest, of which A is asked:

    B v = A v + (Y - S A)' (S S')^+ S v

Where a run is followed, v moves slowly, so nearly all of it lies in that span: the curve of (v, y) is
extrapolated to the order of the number of pairs, as in Anderson's mixing (JACM 1965). L-BFGS asks for
symmetry as well, and keeps less of the pairs before the last.
"""

from __future__ import annotations

from headwater.plan.replay.curvature import Correction, Known


def secants(known: Known) -> Correction:
    """A `Form`."""
    return Correction(known.moves, known.inverse @ (known.changes - known.bent))
