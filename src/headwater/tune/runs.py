"""Which samples each run trains on, which are held out, and in which rows the features of each lie."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from headwater.data.randomness import derive_key
from headwater.engine.inference import BATCH
from headwater.engine.permutation import Shuffled
from headwater.errors import WrongUse

Places = NDArray[np.int64]

LOT = BATCH
"""Samples whose features are asked for, checked and kept together."""

_HOLD_OUT, _DIVIDE = 1, 2  # what the order of samples is keyed by beside the seed


@dataclass(frozen=True, eq=False)
class Lot:
    """Samples that lie in rows one after the other: `places` in the dataset, of one variant.

    `held` ones are for validation, and go through the model's own steps. All lots of a `stretch` are alike.
    """

    number: int
    stretch: int
    first: int
    places: Places
    variant: int
    held: bool

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + len(self.places))


@dataclass(frozen=True, eq=False)
class Stretch:
    """Samples of one run and variant, or those held out; their lots have numbers from `begin` to `end`."""

    number: int
    begin: int
    first: int
    """The row of its first sample."""
    places: Places
    variant: int
    held: bool

    @property
    def end(self) -> int:
        return self.begin + -(-len(self.places) // LOT)

    def rest(self, begin: int) -> Places:
        """The samples of its lots from the one of this number on."""
        return self.places[(begin - self.begin) * LOT :]

    def lot(self, number: int) -> Lot:
        start = (number - self.begin) * LOT
        places = self.places[start : start + LOT]
        return Lot(number, self.number, self.first + start, places, self.variant, self.held)


class Lots(Sequence[Lot]):
    """All lots in the order in which they come; each is made when it is looked at, and none is kept."""

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        self.stretches = tuple(stretches)
        self._begins = [stretch.begin for stretch in stretches]

    def __len__(self) -> int:
        return self.stretches[-1].end if self.stretches else 0

    @overload
    def __getitem__(self, number: int) -> Lot: ...
    @overload
    def __getitem__(self, number: slice) -> list[Lot]: ...
    def __getitem__(self, number: int | slice) -> Lot | list[Lot]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        # Of a stretch without samples, which begins where the next one does, the last is found.
        return self.stretches[bisect_right(self._begins, number) - 1].lot(number)


def count_held(count: int, validation: float) -> int:
    """How many of so many samples are held out."""
    return round(count * validation)


def take_turns(owners: NDArray[np.intp]) -> Places:
    """An order in which what each owner has comes evenly from first to last, his own in their order."""
    own = np.argsort(owners, kind="stable")
    counts = np.bincount(owners)
    number = np.empty(len(owners))
    number[own] = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.argsort((number + 0.5) / counts[owners], kind="stable")


@dataclass(frozen=True, eq=False)
class Runs:
    """The samples of each run and those held out, as places in a dataset in increasing order.

    Features come in this order: those of the first run, in all variants; those held out, which are not needed
    until the first run ends; then the other runs. Within these the samples of all stores take turns, so that
    all work at once: `owners` says whose each sample of the dataset is; None: all are of one.
    """

    trained: tuple[Places, ...]
    held: Places
    variants: int = 1
    owners: NDArray[np.intp] | None = None

    @classmethod
    def divide(
        cls,
        count: int,
        runs: int,
        *,
        validation: float,
        variants: int,
        seed: int,
        owners: NDArray[np.intp] | None = None,
    ) -> Runs:
        """`count` samples by chance: a share held out, the others in runs of equal size, as near as can be.

        Raises `WrongUse` where a run would have no sample.
        """
        chosen = Shuffled(count, derive_key(seed, _HOLD_OUT)).take(0, count)
        held = count_held(count, validation)
        rest = np.sort(chosen[held:])
        if not 1 <= runs <= len(rest):
            raise WrongUse(f"{len(rest):,} samples to train on cannot be divided into {runs} runs")
        order = rest[Shuffled(len(rest), derive_key(seed, _DIVIDE)).take(0, len(rest))]
        parts = [np.sort(part) for part in np.array_split(order, runs)]
        return cls(tuple(parts), np.sort(chosen[:held]), variants, owners)

    def __len__(self) -> int:
        return len(self.trained)

    @cached_property
    def lots(self) -> Lots:
        """All features in the order in which they come."""
        return Lots(list(self._stretches()))

    def _stretches(self) -> Iterator[Stretch]:
        begin = first = 0
        for number, (places, variant, held) in enumerate(self._parts()):
            stretch = Stretch(number, begin, first, places[self._turns(places)], variant, held)
            yield stretch
            begin, first = stretch.end, first + len(places)

    def _parts(self) -> Iterator[tuple[Places, int, bool]]:
        for run, places in enumerate(self.trained):
            for variant in range(self.variants):
                yield places, variant, False
            if run == 0:
                yield self.held, 0, True

    def _turns(self, places: Places) -> Places | slice:
        """In which order the samples of a run come, or those held out."""
        return slice(None) if self.owners is None else take_turns(self.owners[places])

    def _numbers(self, places: Places) -> Places:
        """As what number each comes."""
        numbers = np.empty(len(places), np.int64)
        numbers[self._turns(places)] = np.arange(len(places))
        return numbers

    def _first_row(self, run: int) -> int:
        before = self.variants * sum(map(len, self.trained[:run]))
        return before + (len(self.held) if run else 0)

    @cached_property
    def slots(self) -> tuple[Places, Places]:
        """Rows and places of what is trained on, by run, by variant, by sample: as a journal counts."""
        rows, places = [], []
        for run, trained in enumerate(self.trained):
            first, numbers = self._first_row(run), self._numbers(trained)
            rows += [first + variant * len(trained) + numbers for variant in range(self.variants)]
            places += self.variants * [trained]
        return np.concatenate(rows), np.concatenate(places)

    def rows(self, run: int, epoch: int) -> Places:
        """Where the features of each sample of a run lie in this epoch; variants take turns."""
        count = len(self.trained[run])
        variant = (np.arange(count) + epoch) % self.variants
        rows: Places = self.slots[0][self.slots_of(run)][variant * count + np.arange(count)]
        return rows

    def slots_of(self, run: int) -> slice:
        """Where those of a run are among the slots."""
        before = self.variants * sum(map(len, self.trained[:run]))
        return slice(before, before + self.variants * len(self.trained[run]))

    @property
    def held_rows(self) -> Places:
        """Where the features of the samples lie that are held out."""
        return self.variants * len(self.trained[0]) + self._numbers(self.held)

    def lots_before_run(self, run: int) -> int:
        """How many lots must be here before a run can be trained."""
        return self._lots_of(run, held=run > 0)

    @property
    def lots_before_validation(self) -> int:
        """How many lots must be here before the first run can be validated."""
        return self._lots_of(0, held=True)

    def _lots_of(self, run: int, *, held: bool) -> int:
        each = [self.variants * -(-len(places) // LOT) for places in self.trained[: run + 1]]
        return sum(each) + (-(-len(self.held) // LOT) if held else 0)
