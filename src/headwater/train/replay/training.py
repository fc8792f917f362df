"""Training again, step by step, with the samples that are there after a request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from headwater.train.replay.likeness import look_along
from headwater.train.replay.motion import Motion
from headwater.train.replay.objective import Vector
from headwater.train.replay.request import Request
from headwater.train.replay.visits import Visit
from headwater.train.replay.writer import JournalWriter


@dataclass(frozen=True, eq=False)
class Trained:
    """Where the weights end, with which velocity; the step that they were trained from; rows that it took."""

    place: Vector
    speed: Vector | None
    begin: int
    rows: int


class Trainer:
    """Makes steps with the samples that are left; with a writer it keeps a journal of them."""

    def __init__(self, request: Request, *, writer: JournalWriter | None = None) -> None:
        self._request, self._writer = request, writer
        self._objective, self._rows = request.journal.objective, 0

    def again(self) -> Trained:
        """The whole run. Steps before the last mark that saw no change yet are taken over as they were.

        Raises `JournalRefused` where recorded gradients are not those of their batches, as `look_along` does.
        """
        journal, (first, visits) = self._request.journal, self._request.walk()
        begin = journal.file.mark_before(first)[0]
        self._rows += look_along(self._request, begin)
        if self._writer is not None:
            self._take_over(begin, self._writer)
        return self._train(islice(visits, begin, None), journal.motion_at(begin), begin)

    def last(self, count: int) -> Trained:
        """So many steps more, those that the run ended with, from where it ended."""
        journal, (_, visits) = self._request.journal, self._request.walk()
        begin = max(0, journal.steps - count)
        return self._train(islice(visits, begin, None), journal.motion_at(journal.steps), begin)

    def _take_over(self, count: int, writer: JournalWriter) -> None:
        file = self._request.journal.file
        for moment in islice(file.moments(0), count):
            if writer.wants_mark:
                writer.mark(*file.mark_before(moment.number)[1:])
            writer.step(moment.gradient, moment.rates)

    def _train(self, visits: Iterable[Visit], motion: Motion, begin: int) -> Trained:
        """Steps from this one on."""
        for visit, rates in zip(visits, self._request.journal.file.rates(begin), strict=True):
            if self._writer is not None and self._writer.wants_mark:
                self._writer.mark(motion.place, motion.kept_speed)
            gradient = self._mean(visit, motion.place)
            if gradient is not None:
                motion.step(gradient, rates)
            if self._writer is not None:
                self._writer.step(gradient, rates)
        return Trained(motion.place, motion.kept_speed, begin, self._rows)

    def _mean(self, visit: Visit, place: Vector) -> Vector | None:
        if not visit.now:
            return None
        self._rows += visit.now
        return self._objective.gradient(place, self._request.parts_after(visit)) / np.float32(visit.now)
