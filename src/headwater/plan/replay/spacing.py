"""How far apart computed steps may be, if the error in the end is to be so large and no larger.

Between two computed steps that are T apart, each prediction is off by about the same, so that T - 1 of them
add a square of (T - 1)^2 N(d) to that of the error in the end: N is what a computed step found predictions
to be off by, and what the d steps after it leave of that. A computed step costs 1 / T a step. The sum of
all costs is least, for a sum of all squares, where

    T^2 = 1 + c / N(d)

with the same c for all steps: far apart where nearly all will be pulled back, and closer towards the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headwater.plan.replay.apart import Numbers

_MIDDLES = (np.arange(24) + 0.5) / 24
_PLACES = np.append(_MIDDLES**2, 1.0)
"""Shares of the steps ahead, from the end to now, closest in the end where the most is left of an error."""
_WEIGHTS = np.append(2 * _MIDDLES / 24, 0.0)
_FACTORS = np.geomspace(1e-4, 1e5, 48)[:, None]
_NOTHING = 1e-30


@dataclass(frozen=True, eq=False)
class Outlook:
    """What a computed step says of the `steps` after it.

    `left` is what of the error so far will be left in the end. `fresh` are the squares of what one more
    prediction adds, by groups of directions, and `pulls` the share by which a step makes each smaller.
    """

    left: float
    fresh: Numbers
    pulls: Numbers
    steps: float

    def over(self, length: float) -> Outlook:
        """With lengths as shares of this one."""
        return replace(self, left=self.left / length, fresh=self.fresh / length**2)


def best_period(outlook: Outlook, allowed: float, longest: int) -> int:
    """The period that costs least if the error in the end is to be as large as `allowed`; 1 if it is now."""
    room = allowed**2 - outlook.left**2
    if not room > 0 or outlook.steps < 1:
        return 1
    fresh = _left_of(outlook)
    periods = np.minimum(np.sqrt(1 + _FACTORS * (fresh[0] / fresh)), longest)
    added = ((periods - 1) ** 2 / periods) @ (fresh * _WEIGHTS) * outlook.steps
    fits = int(np.searchsorted(added, room))
    return round(float(periods[fits - 1, -1])) if fits else 1


def _left_of(outlook: Outlook) -> NDArray[np.float64]:
    """The square of what is left in the end of what is added at each place."""
    pulled = np.multiply.outer(outlook.pulls * (-2 * outlook.steps), _PLACES).astype(np.float32)
    left: NDArray[np.float64] = outlook.fresh @ np.exp(pulled, out=pulled) + _NOTHING
    return left
