"""A journal of a head's training, kept in the workplace, so that its samples can be taken out of it later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.train.replay.batches import OverlappedRuns, Slots, describe
from headwater.train.replay.features import version_of
from headwater.train.replay.optimisers import Observed
from headwater.train.replay.recording import EVERY
from headwater.train.replay.records import Header
from headwater.train.replay.writer import JournalWriter
from headwater.tune.head import Head
from headwater.tune.runs import Places


class HeadJournal(Protocol):
    """What is told of a training."""

    def miss(self, slots: Slots) -> None:
        """These slots of the run that begins have no features."""
        ...

    def note(self) -> None:
        """The optimiser is about to make a step."""
        ...

    def sync(self) -> int:
        """An epoch is over; how many steps are on disk."""
        ...

    def seal(self) -> None:
        """Training is over."""
        ...

    def close(self) -> None: ...


class Unnoted:
    """No journal is wanted."""

    def miss(self, slots: Slots) -> None:
        return None

    def note(self) -> None:
        return None

    def sync(self) -> int:
        return 0

    def seal(self) -> None:
        return None

    def close(self) -> None:
        return None


class Noted:
    """Writes down what an optimiser does."""

    def __init__(self, writer: JournalWriter, observed: Observed) -> None:
        self._writer, self._observed = writer, observed

    def miss(self, slots: Slots) -> None:
        self._writer.miss(slots)

    def note(self) -> None:
        self._observed.check(self._writer.steps)
        if self._writer.wants_mark:
            self._writer.mark(self._observed.place, self._observed.speed)
        self._writer.step(self._observed.gradient, self._observed.rates)

    def sync(self) -> int:
        self._writer.sync()
        return self._writer.steps

    def seal(self) -> None:
        self._writer.check(self._observed.place)
        self._writer.seal(self._observed.place, self._observed.speed)

    def close(self) -> None:
        self._writer.close()


@dataclass(frozen=True, eq=False)
class Notes:
    """Where the journal of a fine-tuning is, and what it is to say of the samples, by place: ids and classes.

    `source` is the version whose layers make the features; `about` is what it takes to make them again.
    """

    path: Path
    ids: NDArray[np.int64]
    classes: NDArray[np.int64]
    source: str
    about: Mapping[str, Any]

    def open(self, head: Head, batches: OverlappedRuns, places: Places, *, steps: int) -> HeadJournal:
        """A journal that goes on after so many steps; `places` are those of the samples of its slots.

        Raises `JournalRefused` where there are not so many.
        """
        observed, ids, classes = head.observe(), self.ids[places], self.classes[places]
        header = Header(
            objective=head.objective.describe(),
            batches=describe(batches),
            data=version_of(ids, classes, source=self.source),
            ids=ids.astype("<i8").tobytes(),
            groups=observed.groups,
            momentum=observed.momentum,
            nesterov=observed.nesterov,
            every=EVERY,
            about=dict(self.about),
        )
        if steps:
            return Noted(JournalWriter.resume(self.path, header, steps=steps), observed)
        self.path.unlink(missing_ok=True)
        writer = JournalWriter(self.path, header)
        writer.target(classes)
        return Noted(writer, observed)
