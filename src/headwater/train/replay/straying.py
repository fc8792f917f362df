"""Whether the steps of a run lead from each copy of its weights to the next: nobody else moved them.

Weights are had again from gradients in halves, and by sums in another order. That goes one step after the
other without any look at the loss, so what each step is off by adds up at most, and is known.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from headwater.train.replay.motion import Motion, Rule
from headwater.train.replay.reading import JournalFile, Vector

_HALVES = 2.0**-10
"""What is lost of a gradient at most, as a share of its length: 2^-11 of itself, or of its change."""
_ROUNDING = 2.0**-22
"""What is lost of the weights in a step, in single precision."""
_MANY = 4.0
"""Steps are rounded by chance, this way and that: their sum grows with the root of their number. Of runs
whose weights nobody else moved, none was seen that was off by a twentieth of all this."""


class Slack:
    """How far weights that are had again may be off, since the last copy of them."""

    def __init__(self, rule: Rule) -> None:
        self._reach = 1 / (1 - rule.momentum)
        self._begin()

    def _begin(self) -> None:
        self._way = self._square = 0.0
        self._steps = 0

    def go(self, length: float, rates: NDArray[np.float64]) -> None:
        """A step, or a row of rates for each of several, with gradients no longer than this."""
        ways = length * np.abs(np.atleast_2d(rates)).max(1)
        self._way += float(ways.sum())
        self._square += float(ways @ ways)
        self._steps += len(ways)

    def arrive(self, step: int, place: Vector, mark: Vector) -> str:
        """What is wrong with weights that should be those of a copy; nothing if nothing is."""
        gone = self._reach * min(self._way, _MANY * math.sqrt(self._square))
        allowed = _HALVES * gone + _ROUNDING * self._steps * float(np.linalg.norm(mark))
        self._begin()
        apart = float(np.linalg.norm(place - mark))
        if apart <= allowed:
            return ""
        return (
            f"the weights before step {step:,} are {apart:.2g} from where the steps since the last copy of "
            f"them lead, and rounding explains {allowed:.2g}"
        )


def find_stray(file: JournalFile, end: Vector) -> str:
    """Where a run that ended with these weights left the way of its steps; nothing if nowhere."""
    rule = Rule.of(file.header)
    motion, slack = Motion(rule, np.zeros(rule.size, np.float32)), Slack(rule)
    for moment in file.moments(0):
        if moment.number % file.header.every == 0:
            _, place, speed = file.mark_before(moment.number)
            strayed = moment.number and slack.arrive(moment.number, motion.place, place)
            if strayed:
                return strayed
            motion.set(place, speed)
        if moment.gradient is not None:
            motion.step(moment.gradient, moment.rates)
            slack.go(float(np.linalg.norm(moment.gradient)), moment.rates)
    return slack.arrive(len(file), motion.place, end)
