"""What the coming stretch of a run is for: nothing to try, ways to try, a plan, or files that check plans.

Of stretches that are planned, short ones come first. One that took longer than its plan said is followed by a
short one of files, which measures the link anew and tells whether files are quicker: then files are sent for
a while.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

REASONS = {
    "link": "the trainer itself is the slowest, so no way is worth a try",
    "explore": "ways are tried",
    "guard": "files are sent for a while, to measure the link or because a plan took longer than it said",
    "plan": "its link was not measured yet, so files are sent",
}
"""By phase, for stretches without a plan."""
CHECK = 256
"""Samples after which it is judged who is waited for."""

_EXPLORED = 64  # samples of a stretch in which ways are tried
_GUARD = 128  # samples that come as files to see whether that is quicker
_FIRST_STRETCH, _LONGEST_STRETCH = 512, 16_384
_REFRESH = 8  # plans after which some files are sent, to see whether the link is what it was
_SLOWER = 1.05
_LONGEST_REST = 64
_IDLE = 0.03  # share of time waiting below which nothing but the trainer itself is waited for


class Phases:
    """One phase after the other, by what came of the last ones."""

    def __init__(self) -> None:
        self._since = 0  # plans since files were last sent on purpose
        self._length = _FIRST_STRETCH
        self._rest = self._rests = 0
        self._check = ""  # "due", "under way", or nothing
        self._idle = False
        self._span = np.zeros(3)  # samples, seconds and waiting since it was last judged who is waited for

    def measure_first(self) -> None:
        """Rates are those of an earlier run: the link may be another one by now."""
        self._since = _REFRESH

    def begin(self) -> None:
        """An epoch begins: what was under way in a loop that was left early will not come any more."""
        self._check = "due" if self._check else ""

    @property
    def in_doubt(self) -> bool:
        """Whether files are to tell if plans were slower."""
        return bool(self._check)

    def next(self, is_ready: Callable[[], bool]) -> tuple[str, int]:
        """What the coming stretch is for, and how many samples it should have."""
        if self._idle:
            return "link", CHECK
        if self._rest:
            self._rest -= 1
            return "guard", _GUARD
        if self._check == "due":
            self._check = "under way"
            return "guard", _GUARD
        if not is_ready():
            return "explore", _EXPLORED
        if self._since >= _REFRESH:
            self._since = 0
            return "guard", _GUARD
        self._since += 1
        length, self._length = self._length, min(2 * self._length, _LONGEST_STRETCH)
        return "plan", length

    def doubt(self) -> None:
        """Plans took longer than they should: look at the link."""
        self._check, self._length = "due", _FIRST_STRETCH

    def judge_plans(self, seconds: float, *, files: float) -> None:
        """The link was measured anew: whether files would have been quicker than the plans that were late."""
        self._check = ""
        self._rests = min(max(1, 2 * self._rests), _LONGEST_REST) if files * _SLOWER < seconds else 0
        self._rest = self._rests

    def judge_trainer(self, samples: int, seconds: float, waited: float) -> None:
        """Whether the trainer is what the run waits for, so that no way is worth a try."""
        self._span += (samples, seconds, waited)
        if self._span[0] >= CHECK:
            self._idle = bool(self._span[2] < _IDLE * self._span[1])
            self._span[:] = 0
