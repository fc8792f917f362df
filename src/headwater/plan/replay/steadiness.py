"""Whether steps let errors die away, or blow them up, known from their rates before any of them is made.

Where the loss bends by h, an error x moves as weights do, u' = m u + h x and x' = x - rate u'. At steady
rates that dies away. But velocity that was gathered at a low rate is let go at once where the rate jumps up:
if it does so again and again, each jump overshoots the one before. Then nothing that is known of an error
when it is made tells what comes of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headwater.plan.replay.drift import Inertia

_BENDS = 48
_SPREAD = 1e3
"""Bends from the largest down to so many times less are looked at: some in between may swell most."""


def carry(rates: NDArray[np.float64], momentum: float) -> NDArray[np.float64]:
    """Of each step, the rate at which its force moves weights: momentum carries it to the steps after it."""
    carried = rates.copy()
    for step in range(len(rates) - 2, -1, -1):
        carried[step] += momentum * (carried[step + 1] - carried[step])
    return carried


def swelling(rates: NDArray[np.float64], inertia: Inertia, largest: float) -> float:
    """How many times as much a force moves weights in the end as its reach says, of all steps the most.

    Up to about 1 where errors die away. `largest` is the most that the loss bends.
    """
    bends = np.append(np.geomspace(largest / _SPREAD, largest, _BENDS), 0.0) + inertia.decay
    reaches = carry(rates, inertia.momentum) * inertia.reach
    # What an error and a velocity before a step come to in the end, from the last step on.
    by_place, by_speed, most = np.ones_like(bends), np.zeros_like(bends), 0.0
    for rate, reach in zip(rates[::-1].tolist(), reaches[::-1].tolist(), strict=True):
        by_force = by_speed - rate * by_place
        if reach > 0:
            most = max(most, float(np.abs(by_force).max()) / reach)
        by_place = by_place + by_force * bends
        by_speed = by_force * inertia.momentum
        if not most < _SPREAD:  # before numbers run out
            break
    return most
