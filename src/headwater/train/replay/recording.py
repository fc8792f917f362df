"""Writing a journal of a loop that the user owns: each step of the optimiser is noted before it is made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headwater.errors import WrongUse
from headwater.train.replay.batches import NO_SLOTS, Batches, describe
from headwater.train.replay.features import Features
from headwater.train.replay.objective import Vector
from headwater.train.replay.objectives import objective_of
from headwater.train.replay.optimisers import Observed
from headwater.train.replay.records import Header
from headwater.train.replay.visits import Change, Roster
from headwater.train.replay.writer import JournalWriter

EVERY = 512
"""Steps between two copies of the weights."""

_ALIKE = 0.01
"""How far a gradient may be from what it is expected to be, as a share of its length."""

_LITTLE = 0.01
"""A gradient that is shorter than this share of the longest one, at the end of a run, is mostly rounding."""


class Recording:
    """Batches to train on, one after the other, and a journal of what the optimiser does with each.

    Leaving the context seals the journal if every batch had its step. Otherwise it stays without a seal,
    and no reader takes it; where the disk is full, nothing is left of it. Raises `WrongUse` at a step
    before which the optimiser was changed, and at the end where its steps do not lead to the weights that
    are there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        *,
        data: Features,
        batches: Batches,
        loss: str,
        every: int,
    ) -> None:
        if batches.count != len(data):
            raise WrongUse(
                f"batches are of {batches.count:,} samples, there are {len(data):,} rows of features"
            )
        self._observed, self._objective = Observed(model, optimiser), objective_of(model, loss)
        self._objective.check(data)
        self._data, self._batches, self._optimiser = data, batches, optimiser
        rows = np.arange(len(data))
        self._roster = Roster(batches, NO_SLOTS, data.ids, rows)
        header = Header(
            objective=self._objective.describe(),
            batches=describe(batches),
            data=data.version(rows),
            ids=data.ids.astype("<i8").tobytes(),
            groups=self._observed.groups,
            momentum=self._observed.momentum,
            nesterov=self._observed.nesterov,
            every=every,
        )
        self._path, self._header = path, header
        self._rows: NDArray[np.int64] | slice | None = None
        self._given, self._exhausted = 0, False
        self._longest = 0.0
        self._last = batches.count_steps(NO_SLOTS) - 1

    def __enter__(self) -> Recording:
        self._writer = JournalWriter(self._path, self._header)
        self._hook = self._optimiser.register_step_pre_hook(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hook.remove()
        try:
            if kind is None and self._exhausted:
                self._writer.check(self._observed.place)
                self._writer.seal(self._observed.place, self._observed.speed)
        finally:
            if self._writer.broken:
                self._writer.discard()  # it takes room where there is none
            else:
                self._writer.close()

    def __iter__(self) -> Iterator[NDArray[np.int64] | slice]:
        """The rows of the features in each batch; an array, or a slice where it is all of them."""
        for visit in self._roster.visits(Change()):
            self._rows, self._given = visit.members, self._given + 1
            yield visit.members
            if self._writer.steps != self._given:
                made = self._writer.steps - self._given + 1
                raise WrongUse(f"the optimiser made {made} steps in batch {self._given:,}; make one in each")
        self._exhausted = True

    def _note(self, optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._rows is None:
            raise WrongUse("the optimiser made a step without a batch; loop over the recording")
        self._observed.check(self._writer.steps)
        gradient = self._observed.gradient
        if self._wants_check:
            self._check(gradient, self._observed.place, self._rows)
        if self._writer.wants_mark:
            self._writer.mark(self._observed.place, self._observed.speed)
        self._writer.step(gradient, self._observed.rates)

    @property
    def _wants_check(self) -> bool:
        """At each mark, at the last step, and at steps 0, 1, 2, 4, 8, ...: loops change early, if they do."""
        step = self._writer.steps
        return self._writer.wants_mark or step & (step - 1) == 0 or step == self._last

    def _check(self, gradient: Vector, place: Vector, rows: NDArray[np.int64] | slice) -> None:
        """Whoever trains on something else finds out now, and not when samples are to be removed."""
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        expected = self._objective.gradient(place, self._data.parts(rows)) / np.float32(count)
        apart, length = (float(np.linalg.norm(each)) for each in (gradient - expected, expected))
        self._longest = max(self._longest, length)
        if apart > _ALIKE * max(length, _LITTLE * self._longest):
            raise WrongUse(
                f"the gradient of step {self._writer.steps:,} is {apart:.2g} off that of the mean loss of "
                f"the batch, of length {length:.2g}; train on the rows that the recording gives, as they "
                "are, with the mean of that loss, and clear gradients before backward()"
            )
