"""One Newton step for what a change of the data does to the optimum.

This is an influence function (Koh and Liang, ICML 2017). It aims at where training would end if it went on
for ever, and not at the weights after so many steps: for a run that has not converged, it moves by less or by
more than training again would.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headwater.train.replay.objective import Parts, Vector
from headwater.train.replay.request import Request

_MOST = 100
"""Products with the Hessian, each of which goes once through all samples."""
_CLOSE = 1e-3


def move_by_influence(request: Request) -> tuple[Vector, int]:
    """The weights after the step, and the rows that it took."""
    journal, left = request.journal, request.left
    place, objective = journal.weights, journal.objective
    everyone, count = slice(0, len(left)), np.float32(len(left))
    decay = journal.rule.spread(journal.rule.decays)

    def bend(direction: Vector) -> Vector:
        return objective.curve(place, direction, left.parts(everyone)) / count + decay * direction

    step, products = solve(bend, -_tilt(request, place, left.parts(everyone)))
    return place + step, (products + 1) * len(left)


def _tilt(request: Request, place: Vector, parts: Parts) -> Vector:
    """How the mean gradient over all samples differs after the change, at the same weights."""
    objective, change = request.journal.objective, request.change
    total, count = objective.gradient(place, parts), request.size
    gone = objective.gradient(place, request.data.parts(request.roster.rows[change.leaving]))
    new = objective.gradient(place, request.data.parts(change.rows))
    before = count + len(change.leaving) - len(change.rows)
    return total / np.float32(count) - (total + gone - new) / np.float32(before)


def solve(product: Callable[[Vector], Vector], right: Vector) -> tuple[Vector, int]:
    """Conjugate gradients: x with `product(x)` close to `right`, and how many products it took."""
    x, rest = np.zeros_like(right), right.copy()
    direction, square = rest.copy(), float(np.vdot(rest, rest))
    goal = _CLOSE**2 * square
    for number in range(_MOST):
        if square <= goal:
            return x, number
        bent = product(direction)
        along = float(np.vdot(direction, bent))
        if along <= 0:  # not convex here: what was found so far is the best there is
            return x, number + 1
        pace = np.float32(square / along)
        x += pace * direction
        rest -= pace * bent
        square, last = float(np.vdot(rest, rest)), square
        direction = rest + np.float32(square / last) * direction
    return x, _MOST
