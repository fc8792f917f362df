"""`hw.Journal`: what a training run did, enough to follow it again with other samples."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import nn

from headwater.errors import JournalRefused, WrongUse
from headwater.train.replay.batches import Batches, Slots
from headwater.train.replay.batches import restore as restore_batches
from headwater.train.replay.features import Features
from headwater.train.replay.motion import Motion, Rule
from headwater.train.replay.objective import Objective
from headwater.train.replay.objectives import restore as restore_objective
from headwater.train.replay.reading import JournalFile, Vector
from headwater.train.replay.recording import EVERY, Recording
from headwater.train.replay.visits import Ids, Roster, Rows


class Journal:
    """A journal that is whole, with the features that the run was trained on, and more if need be.

    `model` is the module that was trained; a linear one may be left out. Raises `JournalRefused` for a
    journal of another model or of other data, and for one that is cut short, damaged or altered.
    """

    def __init__(
        self, path: str | os.PathLike[str], data: Features, *, model: nn.Module | None = None
    ) -> None:
        self.file = file = JournalFile(path)
        self.result: str = file.seal.result
        """A digest of the weights that the run ended with."""
        self.data = data
        try:
            self.batches: Batches = restore_batches(file.header.batches)
            self.objective: Objective = restore_objective(file.header.objective, model)
        except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
            if isinstance(error, WrongUse) and model is not None:
                raise  # of the module, and not of the file
            raise JournalRefused(f"{file.path} cannot be read: {error}; train again") from error
        self._check_fit()

    @staticmethod
    def record(
        path: str | os.PathLike[str],
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        *,
        data: Features,
        batches: Batches,
        loss: str = "softmax",
        every: int = EVERY,
    ) -> Recording:
        """A context in which each step of the optimiser is written down, and which gives the batches.

        The loop is yours; its loss must be the mean of `loss` over the batch. Weights are kept before every
        `every` steps. Raises `WrongUse` for what cannot be replayed.
        """
        return Recording(path, model, optimiser, data=data, batches=batches, loss=loss, every=every)

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def steps(self) -> int:
        """How many steps the run had."""
        return len(self.file)

    @property
    def nbytes(self) -> int:
        """Of the file."""
        return self.file.nbytes

    @property
    def bytes_per_weight_and_step(self) -> float:
        return self.nbytes / (self.objective.size * max(self.steps, 1))

    @property
    def ids(self) -> Ids:
        """Of all samples that the run has seen, each once."""
        ids = self.roster.ids[self.roster.rows >= 0]
        return np.unique(ids)

    @property
    def weights(self) -> Vector:
        """What the run ended with, flat."""
        return self.file.mark_before(self.steps)[1]

    @property
    def origin(self) -> Vector:
        """What the run ended with that was last trained in full: this one, unless it was followed."""
        origin = self.file.origin
        return self.weights if origin is None else origin

    def motion_at(self, step: int) -> Motion:
        """Weights and velocity at the last mark before a step."""
        _, place, speed = self.file.mark_before(step)
        return Motion(self.rule, place, speed)

    @cached_property
    def rule(self) -> Rule:
        return Rule.of(self.file.header)

    @cached_property
    def roster(self) -> Roster:
        """Who has each slot; who has no features has no row."""
        rows = self._rows.copy()
        rows[self.file.missing] = -1
        return Roster(self.batches, self.file.missing, self.file.header.slots, rows)

    @cached_property
    def _rows(self) -> Rows:
        """The row of each slot that has a sample."""
        return self.data.find(self.file.header.slots)

    def slots_of(self, ids: Ids) -> Slots:
        """All slots of these samples; raises `WrongUse` for one that has none."""
        found = np.flatnonzero(np.isin(self.roster.ids, ids))
        unknown = np.setdiff1d(ids, self.roster.ids[found])
        if len(unknown):
            raise WrongUse(
                f"{len(unknown):,} of the ids to remove are not in the journal, such as {unknown[0]}; "
                "they were not to be trained on, or are gone already"
            )
        return found

    def _check_fit(self) -> None:
        header, path = self.file.header, self.path
        if header.size != self.objective.size:
            raise JournalRefused(
                f"{path} has {header.size:,} weights, its model {self.objective.size:,}: it was altered; "
                "train again"
            )
        missing, count = self.file.missing, self.batches.count
        outside = len(missing) > 0 and not 0 <= missing[0] <= missing[-1] < count
        if len(header.slots) < count or outside or self.batches.count_steps(missing) != self.steps:
            raise JournalRefused(
                f"{path} has {self.steps:,} steps and {len(header.slots):,} ids, which are not those of its "
                "batches: it was altered; train again"
            )
        self.objective.check(self.data)
        version = self.data.version(self._rows[self._rows >= 0])
        if version != header.data:
            raise JournalRefused(
                f"{path} was made with data of version {header.data[:12]}, these features are "
                f"{version[:12]}: rows or targets have changed; bring those that it was trained on"
            )
