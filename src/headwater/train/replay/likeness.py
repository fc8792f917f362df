"""Whether a run did what its journal says: its gradients are those of the mean loss of its batches.

While a run is recorded its weights are at hand, and gradients must agree to a hundredth of their length.
Along a journal the weights are what halves add up to since the last mark, and those are off by a share of
the longest gradient on the way; so that is what gradients are measured by there.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from headwater.errors import JournalRefused
from headwater.train.replay.features import Features
from headwater.train.replay.journal import Journal
from headwater.train.replay.objective import Vector
from headwater.train.replay.request import Request
from headwater.train.replay.straying import Slack
from headwater.train.replay.visits import Visit

_ALIKE = 0.02
"""How far a gradient may be from that of its batch, as a share of the longest one so far. Of runs that did
what they say, the worst seen was 0.0013."""
_LOOKS = (3, 13, 51, 205, 819)
"""The third, the thirteenth, ... of the steps that may be looked at is: a tenth of a short replay at most.
The recording has looked at steps 1, 2, 4, and so on."""
_AHEAD = 64
"""Steps after a mark that are gone along before training again."""
_LONGER = 2.0
"""Gradients that nobody looked at may be so many times as long as those that somebody did."""


class Likeness:
    """Looks at some of the steps that it is shown, at fewer and fewer of them, and refuses the journal.

    A journal that was followed from another is not looked at: its gradients are predictions.
    """

    def __init__(self, journal: Journal) -> None:
        self._path, self._objective = journal.path, journal.objective
        self._derived = journal.file.origin is not None
        self._longest, self._shown = 0.0, 0
        self._file, self._slack, self._since = journal.file, Slack(journal.rule), -1

    def arrive(self, step: int, place: Vector, mark: Vector, gradient: Vector | None) -> None:
        """At a copy of the weights: `place` is where the steps since the last one led, `gradient` the next.

        Raises `JournalRefused` where that is somewhere else.
        """
        if self._since >= 0 and self._longest:
            rates = np.array(list(islice(self._file.rates(self._since), step - self._since)))
            self._slack.go(_LONGER * self._longest, rates)
            strayed = self._slack.arrive(step, place, mark)
            if strayed:
                raise JournalRefused(
                    f"{self._path} cannot be followed: {strayed}; record a run in which nothing but the "
                    "optimiser moves weights and momentum, or train again"
                )
        self._since = step
        if gradient is not None:
            self._longest = max(self._longest, float(np.linalg.norm(gradient)))

    def look(self, visit: Visit, gradient: Vector, place: Vector, data: Features) -> int:
        """How many rows it took to look at this step; raises `JournalRefused` where the gradient is another.

        `gradient` is what the journal has for the step, `place` the weights before it.
        """
        self._shown += 1
        self._longest = max(self._longest, float(np.linalg.norm(gradient)))
        if self._derived or self._shown not in _LOOKS:
            return 0
        expected = self._objective.gradient(place, data.parts(visit.members)) / np.float32(visit.size)
        apart, length = (float(np.linalg.norm(each)) for each in (gradient - expected, expected))
        # Samples that are forgotten have no numbers any more, and what is no number is no verdict.
        if apart > _ALIKE * max(length, self._longest):
            raise JournalRefused(
                f"{self._path} has a gradient for step {visit.number:,} that is {apart:.2g} off that of the "
                f"mean loss of its batch, of length {length:.2g}: the loop did something else, such as to "
                "scale its loss or to clip gradients; record a run that does not, or train again"
            )
        return visit.size


def look_along(request: Request, begin: int) -> int:
    """Look at a few steps after a mark before all are made again; how many rows that took.

    Whoever trains again needs nothing of the recorded gradients, and would never see that they are others.
    """
    journal, (_, visits) = request.journal, request.walk()
    likeness, old, rows = Likeness(journal), journal.motion_at(begin), 0
    steps = zip(islice(visits, begin, None), journal.file.moments(begin), strict=False)
    for visit, moment in islice(steps, _AHEAD + 1):
        if moment.gradient is None:
            continue
        if visit.number > begin:  # at a mark the recording has looked
            rows += likeness.look(visit, moment.gradient, old.place, request.data)
        old.step(moment.gradient, moment.rates)
    return rows
