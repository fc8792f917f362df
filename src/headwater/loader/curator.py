"""Which samples a loader's epochs visit: a selector, the table that it learns from, and what it said last."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from headwater.data.indexcache import cache_folder
from headwater.errors import WrongUse
from headwater.loader.exchange import exchange_rows, mean_of
from headwater.loader.knowledge import ENDED, HISTORY, SELECTION, look_at, past_of
from headwater.loader.ledger import Ledger
from headwater.loader.pantry import Pantry
from headwater.loader.sharing import agree
from headwater.loader.tables import SUFFIX, Tables
from headwater.loader.worth import LEAST_SECONDS
from headwater.measure.signalfile import read_signals
from headwater.measure.signals import Signals
from headwater.select.past import Past
from headwater.select.samples import Samples
from headwater.select.selecting import (
    Selector,
    complete_selection,
    find_selector,
    make_selection,
    select_all,
)
from headwater.select.selection import Selection
from headwater.store.dataset import Dataset

log = logging.getLogger("headwater")


@runtime_checkable
class Elsewhere(Protocol):
    """A selector that works where the data is, and of which an answer may come late or never.

    It clips no weights and knows no near-duplicates: both is done here, when there is all of a selection.
    """

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> Mapping[str, Any]:
        """What is saved of it while it has made no selection; `resume` gets it back."""
        ...

    def attach(self, ranks: Callable[[], tuple[int, int]]) -> None:
        """It selects for a loader that is of this rank, of so many."""
        ...

    def resume(self, selection: Selection) -> None:
        """A saved run goes on, in which this selection stands; its state is what this selector put there."""
        ...

    def select_epoch(self, samples: Samples) -> Selection | None:
        """The samples of the epoch; None where there is nothing new, so that the last ones stand."""
        ...

    def trained(self, seconds: float, *, whole: bool, visited: int, everything: int) -> None:
        """An epoch is over, after so many seconds; `whole` unless it was resumed or left early.

        `visited` is how many samples it has, `everything` how many one without a selection has; both are
        fewer where near-duplicates are left out.
        """
        ...


class Curator:
    """Selects for one loader, an epoch at a time; every rank comes to the same selection."""

    def __init__(
        self,
        selector: str | Selector | Elsewhere,
        dataset: Dataset,
        *,
        seed: int,
        epochs: int | None,
        ranks: Callable[[], tuple[int, int]],
        folder: Path | None = None,
        pantry: Pantry | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`folder` is where tables are saved, in the cache unless given; `pantry` is what is at hand.

        In place of a folder a saved table may be given, to begin with what that knows; raises `StateMismatch`
        for one that cannot be read, or is of other data.
        """
        self._selector = selector if isinstance(selector, Elsewhere) else find_selector(selector)
        self._dataset, self._seed, self._epochs, self._ranks = dataset, seed, epochs, ranks
        known = folder if folder is not None and folder.suffix == SUFFIX else None
        self._tables = Tables((folder if known is None else known.parent) or cache_folder() / "signals")
        self._pantry = pantry
        if isinstance(self._selector, Elsewhere):
            self._selector.attach(ranks)
        self._ledger = None if isinstance(self._selector, Elsewhere) else Ledger(self._selector, clock=clock)
        self.signals = Signals(dataset.index, folder=self._tables.folder)
        if known is not None:
            self.signals = read_signals(known, dataset.index, folder=self._tables.folder)
            self.signals.renew()
        if pantry is not None and pantry.duplicates is not None:
            self.signals.column("group")[dataset.positions()] = pantry.duplicates.groups
        self._selection: Selection | None = None
        self._given: Selection | None = None  # the last from elsewhere, before near-duplicates were left out
        self._everything = len(dataset)  # samples of an epoch without a selection
        self.running = False
        """Whether a loop is in the middle of an epoch."""

    @property
    def name(self) -> str:
        return self._selector.name

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns that must be reported; none for a selector that selects no more."""
        return () if isinstance(self._selector, Elsewhere) or self.ended else self._selector.needs

    def standing(self, epoch: int) -> Selection:
        """What was selected for this epoch; if nothing was yet, it is done now, unless all ranks must.

        While the last batch of the epoch before is under way, that one's: what it shows is not known yet.
        """
        if self.running and self._selection is not None:
            return self._selection
        if self._selection is None or self._selection.epoch != epoch:
            if self._ranks()[1] > 1 and self._selection is not None and self.signals.has("seen"):
                raise WrongUse(f"nothing is selected for epoch {epoch} yet; begin it on all ranks first")
            self._select(epoch, 0.0)
        assert self._selection is not None
        return self._selection

    def begin(self, epoch: int, *, stalled: float = 0.0) -> Selection:
        """The selection of an epoch. Ranks tell each other what they saw, so all must call it.

        `stalled` is the share of the last epoch in which training waited for data. Raises `WrongUse` for
        ranks that must tell each other and cannot.
        """
        self._check_ranks()
        if self._selection is None or self._selection.epoch != epoch:
            if self._ranks()[1] > 1:
                stalled = self._exchange(stalled)
            else:
                self.signals.touched = None  # there is nobody to tell
            self._judge()
            self._select(epoch, stalled)
        assert self._selection is not None
        return self._selection

    def counts(self) -> dict[int, int]:
        """How many samples were selected for each epoch so far."""
        return {one.epoch: one.selected for one in past_of(self.signals)}

    @property
    def ended(self) -> str:
        """Why a selector at the trainer selects no more, in a line; empty while it does."""
        return str(self.signals.notes.get(ENDED, ""))

    def scored(self, seconds: float) -> None:
        """Say what it took to know more of samples than their loss."""
        if self._ledger is not None:
            self._ledger.scored(seconds)

    def trained(self, seconds: float, *, whole: bool) -> None:
        """Say that an epoch is over, to who wants to know."""
        if isinstance(self._selector, Elsewhere):
            visited = self._everything if self._selection is None else len(self._selection)
            self._selector.trained(seconds, whole=whole, visited=visited, everything=self._everything)
        elif self._ledger is not None and whole and self._selection is not None:
            self._ledger.trained(seconds, visited=len(self._selection), samples=self._everything)
        elif self._ledger is not None:
            self._ledger.left()

    def _judge(self) -> None:
        """End a selector that does not pay, on all ranks at once; what is saved knows of it too."""
        if self._ledger is None or not self._ledger.judges or self.ended:
            return
        several = self._ranks()[1] > 1 and _connected()
        lost = mean_of(self._ledger.lost) if several else self._ledger.lost
        if lost >= LEAST_SECONDS:
            reason = self._ledger.verdict or f"selecting costs {lost:.3g} s an epoch more than it saves"
            self.signals.notes[ENDED] = reason
            log.warning("%s; %s ends, and epochs visit everything", reason, self.name)

    def _check_ranks(self) -> None:
        """What learns from reports, or selects in one place for all, takes more than a rank's number."""
        together = bool(self.needs) or isinstance(self._selector, Elsewhere)
        if together and self._ranks()[1] > 1 and not _connected():
            raise WrongUse(
                f"selector {self.name!r} has to do with all ranks; call torch.distributed.init_process_group"
            )

    def _exchange(self, stalled: float) -> float:
        if not _connected():
            return 0.0
        self.signals.put(exchange_rows(self.signals.take_touched()))
        return mean_of(stalled)

    def _select(self, epoch: int, stalled: float) -> None:
        samples = self.samples(epoch, stalled=stalled)
        found = self._find(samples)
        if self._ranks()[1] > 1 and _connected():
            found = agree(found, self._ranks)
        if self._pantry is not None:
            found = self._pantry.provide(samples, found, read=self.signals.read[self._at])
        self._hold(found)
        past = Past.of(samples, found)
        self.signals.notes.setdefault(HISTORY, []).append(msgspec.to_builtins(past))

    def _find(self, samples: Samples) -> Selection:
        """The selection of an epoch, near-duplicates left out if this is an epoch for that."""
        redundancy, left_out = "keep", 0
        if self._pantry is not None and self._pantry.duplicates is not None:
            redundancy = self._pantry.redundancy(samples.stalled)
            left_out = self._pantry.duplicates.redundant if redundancy == "drop" else 0
        self._everything = len(samples) - left_out
        if not isinstance(self._selector, Elsewhere):
            return self._choose(self._selector, samples, redundancy)
        self._given = self._ask(self._selector, samples)
        return complete_selection(samples, self._given, redundancy=redundancy)

    def _ask(self, selector: Elsewhere, samples: Samples) -> Selection:
        """What is chosen elsewhere: the last one again where none comes, and everything before any."""
        found, last = selector.select_epoch(samples), self._given
        if found is not None:
            return found
        if last is not None:
            return replace(last, epoch=samples.epoch, reason="as before; there is none that is newer")
        found = select_all(samples, name=self.name, reason="everything, until there is a selection")
        return replace(found, state=selector.state)

    def _choose(self, selector: Selector, samples: Samples, redundancy: str) -> Selection:
        assert self._ledger is not None
        if self.ended:
            found = select_all(samples, name=self.name, reason=f"everything: {self.ended}")
            return complete_selection(samples, found, redundancy=redundancy)
        with self._ledger.selecting():
            return make_selection(selector, samples, redundancy=redundancy)

    def _hold(self, selection: Selection) -> None:
        """Keep it in mind, and in the table too."""
        self._selection = selection
        at, signals = self._at, self.signals
        signals.column("weight")[:] = np.nan
        signals.weight[at[selection.places]] = selection.weights
        if self._given is not None:
            signals.column("chosen")[:] = np.nan
            signals.chosen[at[self._given.places]] = self._given.weights
        if selection.buckets is not None:
            signals.column("bucket")[at] = selection.buckets
        if signals.has("stand_in"):
            signals.stand_in[:] = -1
        if selection.stand_ins is not None:
            signals.stand_in[at[selection.places]] = selection.stand_ins
        signals.notes[SELECTION] = {
            "selector": selection.selector,
            "epoch": selection.epoch,
            "reason": selection.reason,
            "state": dict(selection.state),
            "seed": self._seed,
            "epochs": self._epochs,
            "duplicates": None if self._pantry is None else self._pantry.habits,
        }
        log.info(
            "epoch %d: %d of %d samples (%s), worth %.0f of equal weight",
            *(selection.epoch, len(selection), len(self._dataset), selection.reason, selection.effective),
        )

    @cached_property
    def _at(self) -> NDArray[np.int64]:
        """Where the dataset's samples stand in the table."""
        return self._dataset.positions()

    def samples(self, epoch: int, *, stalled: float = 0.0) -> Samples:
        """What is known of the dataset's samples, as selectors see it."""
        facts = {"seed": self._seed, "epoch": epoch, "epochs": self._epochs, "stalled": stalled}
        return look_at(self._dataset, self.signals, **facts)

    def save(self) -> str:
        """Write the table, with the selection that stands, and return the digest that it is found by."""
        return self._tables.save(self.signals, self._dataset.index)

    def restore(self, digest: str) -> None:
        """Go on with a saved table; raises `StateMismatch` where it is not, or is not of this data."""
        self.signals = self._tables.load(digest, self._dataset.index)
        note = self.signals.notes.get(SELECTION)
        self._selection = None if note is None else self._restored(note)
        if self._selection is not None and isinstance(self._selector, Elsewhere):
            self._given = self._restored_choice(self._selection) if self.signals.has("chosen") else None
            self._selector.resume(self._selection)

    def _restored_choice(self, selection: Selection) -> Selection:
        """What was chosen elsewhere, of which near-duplicates were left out to come to the selection."""
        weights = self.signals.chosen[self._at]
        (places,) = np.nonzero(~np.isnan(weights))
        return replace(selection, places=places, weights=weights[places], buckets=None, stand_ins=None)

    def _restored(self, note: dict[str, Any]) -> Selection:
        signals, at = self.signals, self._at
        weights = signals.weight[at]
        (places,) = np.nonzero(~np.isnan(weights))
        return Selection(
            note["selector"],
            note["epoch"],
            places,
            weights[places],
            note["reason"],
            signals.bucket[at] if signals.has("bucket") else None,
            note["state"],
            signals.stand_in[at[places]] if signals.has("stand_in") else None,
        )


def _connected() -> bool:
    """Whether ranks can tell each other anything."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()
