"""Following a recorded run with other samples: how far its weights move away, step by step.

With w the weights of the recorded run, w + v those of the run that is looked for, and a batch of n samples
of which some leave and some join, so that n' are left,

    gradient'(w + v) - gradient(w) = (n y + (leaving - joining) g - sum over leaving + sum over joining) / n'

where y is how the mean gradient of the old batch changes from w to w + v, g is what the journal has for it,
and the sums are gradients of single samples at w + v. An exact step computes y over the whole batch, an
approximate one predicts it from exact steps before (DeltaGrad, ICML 2020). Only v is computed, from
differences alone, so that one sample of a million is followed as precisely as a tenth of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from headwater.plan.replay import Course, Inertia, Policy, ReplayPlan, carry, swelling
from headwater.train.replay.likeness import Likeness
from headwater.train.replay.motion import Motion
from headwater.train.replay.objective import Sketch, Vector
from headwater.train.replay.reading import Moment
from headwater.train.replay.request import Request
from headwater.train.replay.visits import Rows, Visit
from headwater.train.replay.writer import JournalWriter

_SKETCHED = 512
"""Samples by which the Hessian is sketched."""
_PATIENCE = 0.2
"""The share by which a run goes on until the sketch is renewed."""


@dataclass(frozen=True, eq=False)
class Followed:
    """Where the weights end, how far from the old ones, with which velocity; what was decided; rows it took.

    `error` is how far off the weights may be.
    """

    place: Vector
    moved: Vector
    speed: Vector | None
    plan: ReplayPlan
    error: float
    rows: int


class Follower:
    """Walks along a journal with a request; writes the journal of the new run if there is a writer.

    Raises `JournalRefused` where a recorded gradient is not that of its batch, as far as some are looked at,
    and where the steps do not lead to the next copy of the weights.
    """

    def __init__(self, request: Request, policy: Policy, *, writer: JournalWriter | None = None) -> None:
        self._request, self._file, self._writer = request, request.journal.file, writer
        self._objective, self._data = request.journal.objective, request.data
        self._rule = rule = request.journal.rule
        self._old = request.journal.motion_at(0)
        self._offset = Motion(rule, np.zeros(rule.size, np.float32))
        self._inertia = inertia = Inertia(rule.momentum, rule.mean(np.array(rule.decays)))
        convex = not self._objective.experimental
        self._course = Course(policy, inertia, size=rule.size, noisy=not request.whole, convex=convex)
        self._sketch = self._objective.sketch(request.some(_SKETCHED)) if self._course.informed else None
        many = self._sketch is not None and request.many
        self._left = self._objective.sketch(request.some(_SKETCHED, staying=True)) if many else None
        self._likeness = Likeness(request.journal)
        self._plain_rates = np.array([rule.mean(each) for each in self._file.rates(0)])
        self._rates = carry(self._plain_rates, rule.momentum)
        self._first = self._look_at = 0
        self._moved = False
        self._all_from: int | None = None
        """The step from which on all are computed, since approximating does not pay. They are followed
        still: a run of its own would begin where gradients in halves have led to, and a small change would
        be lost in that."""
        self._rows = 0
        self._exact: list[int] = []

    @property
    def swelling(self) -> float:
        """How many times as much errors may come to as an estimate can say; 0 where that is not known.

        The Hessian is looked at where the run begins and where it ends.
        """
        if self._sketch is None:
            return 0.0
        nothing, journal = np.zeros(self._rule.size, np.float32), self._request.journal
        places = (journal.motion_at(0).place, journal.weights)
        bends = [self._sketch.at(each).take_apart(nothing).bends.max() for each in places]
        return swelling(self._plain_rates, self._inertia, float(max(bends)))

    def follow(self) -> Followed:
        """To the end of the run."""
        file, (first, visits) = self._file, self._request.walk()
        begin = 0 if self._writer is not None else file.mark_before(first)[0]
        self._first = first
        self._ahead = self._rates[::-1].cumsum()[::-1] - self._rates
        for visit, moment in zip(islice(visits, begin, None), file.moments(begin), strict=True):
            if visit.number % file.header.every == 0:
                self._pass_mark(visit.number, moment.gradient)
            self._begin_note()
            gradient = self._step(visit, moment)
            if self._writer is not None:
                self._writer.step(gradient, moment.rates)
        self._pass_mark(len(file), None)
        return self._finish(first)

    def _pass_mark(self, step: int, gradient: Vector | None) -> None:
        """The old run goes on from a copy of its weights, where it has to be already."""
        _, place, speed = self._file.mark_before(step)
        self._likeness.arrive(step, self._old.place, place, gradient)
        self._old.set(place, speed)

    def _step(self, visit: Visit, moment: Moment) -> Vector | None:
        """Both runs, one step on; the mean gradient of the new one, None if it does not move."""
        if not self._moved and not visit.changed:
            return self._repeat(moment)
        if moment.gradient is None or not visit.now:
            return self._part(visit, moment)
        return self._follow(visit, moment, moment.gradient)

    def _repeat(self, moment: Moment) -> Vector | None:
        """A step that is as it was, before the first that sees a change."""
        if moment.gradient is not None:
            self._old.step(moment.gradient, moment.rates)
        return moment.gradient

    def _part(self, visit: Visit, moment: Moment) -> Vector | None:
        """Only one of both runs moves, or none: the other has nobody in its batch."""
        new = self._new()
        gradient = self._train(new, visit, moment)
        self._repeat(moment)
        self._offset.set(new.place - self._old.place, new.speed - self._old.speed)
        self._moved = True
        self._exact.append(visit.number)
        return gradient

    def _follow(self, visit: Visit, moment: Moment, gradient: Vector) -> Vector | None:
        few = not visit.staying or visit.now <= len(visit.leaving)
        if few:  # all that is known of the others does not help
            change = self._mean(visit, self._old.place + self._offset.place) - gradient
            self._exact.append(visit.number)
        else:
            change = self._change(visit, moment, gradient)
        self._offset.step(change, moment.rates)
        self._old.step(gradient, moment.rates)
        self._moved = True
        if self._all_from is None and self._course.futile:
            self._all_from = visit.number + 1
        return None if self._writer is None else gradient + change

    def _change(self, visit: Visit, moment: Moment, gradient: Vector) -> Vector:
        """How the mean gradient of the batch differs between both runs."""
        gone = self._sum(visit.leaving, self._old.place) if len(visit.leaving) else None
        change = self._react(visit, moment, gradient, gone)
        if visit.changed:
            now, size = torch.from_numpy(change).mul_(visit.staying / visit.now), visit.now
            fewer = len(visit.leaving) - len(visit.joining)
            now.add_(torch.from_numpy(gradient), alpha=fewer / size)
            if gone is not None:
                now.sub_(torch.from_numpy(gone), alpha=1 / size)
            if len(visit.joining):
                place = self._old.place + self._offset.place
                now.add_(torch.from_numpy(self._sum(visit.joining, place)), alpha=1 / size)
        return change

    def _react(self, visit: Visit, moment: Moment, gradient: Vector, gone: Vector | None) -> Vector:
        """How the mean gradient of those who stay changes with the offset, computed or predicted.

        `gone` is the sum of the recorded gradients of those who leave.
        """
        if not self._moved:
            self._exact.append(visit.number)  # for nothing
            return np.zeros_like(gradient)
        rate, offset = float(self._rates[visit.number]), self._offset.place
        following = self._all_from is None
        if following and not self._course.next_is_exact(offset):
            return self._course.predict(offset, rate)
        self._rows += self._likeness.look(visit, gradient, self._old.place, self._data)
        if following:
            self._inform(visit.number)
        change = self._compute(visit, gradient * np.float32(visit.size), gone) / np.float32(visit.staying)
        if following:
            self._course.learn(offset, change, rate, ahead=float(self._ahead[visit.number]))
        self._exact.append(visit.number)
        return change

    def _compute(self, visit: Visit, total: Vector, gone: Vector | None) -> Vector:
        """How the sum of the gradients of those who stay changes; `total` and `gone` are recorded sums."""
        if gone is None:
            return self._change_of(visit.members, total)
        if isinstance(visit.members, slice) and not visit.tail:  # selecting all others would copy them
            return self._change_of(visit.members, total) - self._change_of(visit.leaving, gone)
        return self._change_of(visit.stayers, total - gone)

    def _change_of(self, rows: Rows | slice, known: Vector) -> Vector:
        """How a sum of gradients, which is `known` of the old run, changes with the offset."""
        parts = self._data.parts(rows)
        self._rows += rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        return self._objective.change(self._old.place, self._offset.place, parts, known=known)

    def _inform(self, step: int) -> None:
        """Look at the Hessian anew, often in the beginning and then less and less, as it changes."""
        if self._sketch is not None and step >= self._look_at:
            self._assume(self._sketch, self._old.place + self._offset.place)
            self._look_at = step + 1 + int(_PATIENCE * (step - self._first))

    def _assume(self, sketch: Sketch, place: Vector) -> None:
        """The new run is at this place. Where a class has gone, nothing bends any more in its directions."""
        left = None if self._left is None else self._left.at(place)
        self._course.assume(sketch.at(self._old.place), left=left)

    def _train(self, new: Motion, visit: Visit, moment: Moment) -> Vector | None:
        """A step of the new run by itself."""
        if not visit.now:
            return None
        gradient = self._mean(visit, new.place)
        new.step(gradient, moment.rates)
        return gradient

    def _mean(self, visit: Visit, place: Vector) -> Vector:
        """The gradient over all that are in the batch after the change."""
        self._rows += visit.now
        total = self._objective.gradient(place, self._request.parts_after(visit))
        return total / np.float32(visit.now)

    def _sum(self, rows: Rows, place: Vector) -> Vector:
        self._rows += len(rows)
        return self._objective.gradient(place, self._data.parts(rows))

    def _new(self) -> Motion:
        """The new run as it is now."""
        old, offset = self._old, self._offset
        return Motion(self._rule, old.place + offset.place, old.speed + offset.speed)

    def _begin_note(self) -> None:
        if self._writer is not None and self._writer.wants_mark:
            new = self._new()
            self._writer.mark(new.place, new.kept_speed)

    def _finish(self, first: int) -> Followed:
        new, note = self._new(), ""
        if self._all_from is not None:
            note = f"from step {self._all_from:,} on all were computed: approximating would not have paid"
            if self._sketch is not None:
                self._assume(self._sketch, new.place)
            self._course.train(self._rates[self._all_from :])
        length = float(np.linalg.norm(new.place - self._request.journal.origin))
        error = self._course.error + self._file.seal.error
        share = error / length if length else 0.0
        plan = ReplayPlan(
            steps=len(self._file),
            first=first,
            exact=tuple(self._exact),
            error=share if np.isfinite(new.place).all() and not np.isnan(share) else float("inf"),
            note=note,
        )
        return Followed(new.place, self._offset.place, new.kept_speed, plan, error, self._rows)
