"""The tuner's half: run after run, epoch after epoch, on features that are here; its state after each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from headwater.data.randomness import derive_key
from headwater.errors import JournalRefused, ModelError
from headwater.train.replay.batches import OverlappedRuns
from headwater.tune import state
from headwater.tune.features import FeatureFile
from headwater.tune.head import Batch, Head, Scaling
from headwater.tune.inflow import Inflow, Watch
from headwater.tune.notes import HeadJournal, Notes, Unnoted
from headwater.tune.recipe import Recipe
from headwater.tune.runs import LOT, Places, Runs
from headwater.tune.state import Standing
from headwater.tune.team import team

log = logging.getLogger("headwater")

MakeHead = Callable[[Scaling], Head]
"""The head as it is before the first run, for features that are scaled so."""

_SEED_BITS = (1 << 63) - 1
_SCALED_AT_ONCE = 16 * LOT


@dataclass(frozen=True, eq=False)
class Training:
    """Trains a head on the runs; `labels` are those of all samples of the dataset, by place."""

    runs: Runs
    file: FeatureFile
    labels: NDArray[np.int64]
    recipe: Recipe
    path: Path
    """Of the state."""
    notes: Notes | None = None
    """Keeps a journal, if one is wanted."""

    def finish(self, inflow: Inflow, make_head: MakeHead, *, watch: Watch) -> Trained:
        """Train from where the state stands to the end. The same features give the same head, bit for bit."""
        inflow.wait(self.runs.lots_before_run(0))
        head = make_head(self._scaling())
        with team(head.weights, self.recipe.batch_size):
            return self._go_on(head, inflow, watch)

    def _go_on(self, head: Head, inflow: Inflow, watch: Watch) -> Trained:
        (standing, journal), busy = self._restore(head), 0.0
        with closing(journal):
            for run in range(standing.run, len(self.runs)):
                inflow.wait(self.runs.lots_before_run(run))
                begun = time.perf_counter()
                standing = self._train(head, standing, journal, watch)
                busy += time.perf_counter() - begun
                inflow.wait(self.runs.lots_before_validation)
                standing = standing.ended(head.accuracy(self._held()))
                self._keep(head, standing)
                watch.run(run, standing.accuracy[-1])
            journal.seal()
        return Trained(head, standing, busy)

    def _restore(self, head: Head) -> tuple[Standing, HeadJournal]:
        """Where training stands, and its journal, which goes on from there."""
        found = state.load(self.path)
        if found is not None:
            standing, tensors, plain = found
            try:
                journal = self._open_journal(head, standing.steps)
                head.load(tensors, plain)
                return standing, journal
            except JournalRefused as error:
                log.warning("%s: training begins anew", error)
        return Standing(), self._open_journal(head, 0)

    def _open_journal(self, head: Head, steps: int) -> HeadJournal:
        if self.notes is None:
            return Unnoted()
        return self.notes.open(head, self.batches, self.runs.slots[1], steps=steps)

    def _keep(self, head: Head, standing: Standing) -> None:
        tensors, plain = head.state()
        state.save(self.path, standing, tensors=tensors, plain=plain)

    def _train(self, head: Head, standing: Standing, journal: HeadJournal, watch: Watch) -> Standing:
        """The epochs of a run that are left."""
        run, slots = standing.run, self.runs.slots_of(standing.run)
        if standing.epoch == 0:
            journal.miss(slots.start + np.flatnonzero(~self.file.sound(self.runs.slots[0][slots])))
        for epoch in range(standing.epoch, self.recipe.epochs):
            rate = self.recipe.rate(run, epoch, runs=len(self.runs))
            with _seeded(self.recipe.seed, run, epoch):
                loss = head.train(self._batches(run, epoch), rate=rate, note=journal.note)
            standing = standing.trained(loss, steps=journal.sync())
            self._keep(head, standing)
            watch.epoch(run, epoch, standing.losses[run][-1])
        return standing

    def _batches(self, run: int, epoch: int) -> Iterator[Batch]:
        """As many samples as are new with the run, in batches of equal size, as near as can be.

        They are drawn from all that have come so far, in an order that goes once through them in as many
        epochs as there were runs: a run takes no longer for it, and forgets nothing of those before.
        """
        rows, places = self.runs.slots
        found = self.batches.epoch(run, epoch, sound=self.file.sound(rows))
        for some in np.split(found.order, found.bounds[1:-1]):
            yield self._batch(rows[some], places[some])

    @cached_property
    def batches(self) -> OverlappedRuns:
        """Which samples each step sees."""
        sizes, recipe = tuple(map(len, self.runs.trained)), self.recipe
        return OverlappedRuns(sizes, recipe.batch_size, recipe.epochs, self.runs.variants, recipe.seed)

    def _held(self) -> Iterator[Batch]:
        rows = self.runs.held_rows
        sound = np.flatnonzero(self.file.sound(rows))
        for start in range(0, len(sound), _SCALED_AT_ONCE):
            some = sound[start : start + _SCALED_AT_ONCE]
            yield self._batch(rows[some], self.runs.held[some])

    def _batch(self, rows: Places, places: Places) -> Batch:
        return torch.from_numpy(self.file.take(rows)).float(), torch.from_numpy(self.labels[places])

    def _scaling(self) -> Scaling:
        rows = self.runs.rows(0, 0)
        rows = rows[self.file.sound(rows)]
        if not len(rows):
            raise ModelError(f"none of the {len(self.runs.trained[0]):,} samples of run 1 has features")
        starts = range(0, len(rows), _SCALED_AT_ONCE)
        return Scaling.of(self.file.take(rows[start : start + _SCALED_AT_ONCE]) for start in starts)


@dataclass(frozen=True, eq=False)
class Trained:
    """What came out: the head, what each run reached, and the seconds that training took this time."""

    head: Head
    standing: Standing
    seconds: float


@contextmanager
def _seeded(seed: int, run: int, epoch: int) -> Iterator[None]:
    """Torch's generator as it is in this epoch, for a head that draws; the user's own is left alone."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(derive_key(seed, run, epoch) & _SEED_BITS)
        yield
