"""Which samples each step of a training run saw, as a function of a seed: nothing is written down per step.

A *slot* is a place for one row of features. Batches are made of the slots 0 to `count` - 1; what is added
to a run later has slots after these, and joins batches by its id. A slot stays where it is when its sample
goes, so a sample that goes leaves every other one in the batches in which it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.data.randomness import as_words, derive_key, mix
from headwater.engine.permutation import Shuffled
from headwater.errors import ModelError, WrongUse

Slots = NDArray[np.int64]

NO_SLOTS: Slots = np.empty(0, np.int64)
_JOINING = 1  # what sets the hashes of added samples apart from those of the order


@dataclass(frozen=True, eq=False)
class Epoch:
    """Steps one after the other: batch k has the slots order[bounds[k] : bounds[k + 1]].

    Where an epoch goes through one of `parts` parts of the samples only, about as large a part of what was
    added takes part in it. `whole` says that its one batch is everything.
    """

    first: int
    order: Slots
    bounds: Slots
    key: int
    part: int = 0
    parts: int = 1
    whole: bool = False

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def join(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The batch that each of these added samples is in, -1 for none."""
        words = mix(as_words(ids) ^ np.uint64(derive_key(self.key, _JOINING)))
        here = (words % np.uint64(self.parts)).astype(np.int64) == self.part
        batch = (words // np.uint64(self.parts) % np.uint64(len(self))).astype(np.int64)
        return np.where(here, batch, -1)


class Batches(Protocol):
    """How slots are divided into steps."""

    @property
    def count(self) -> int:
        """How many slots there are."""
        ...

    @property
    def seen(self) -> int:
        """How many samples all steps see together."""
        ...

    def count_steps(self, missing: Slots = NO_SLOTS) -> int:
        """How many steps all epochs have."""
        ...

    def divide(self, missing: Slots = NO_SLOTS) -> Iterator[Epoch]:
        """All epochs in their order; `missing` slots never had features, and are in none."""
        ...


@dataclass(frozen=True)
class FullBatch:
    """Every one of `steps` steps sees all `count` samples. Raises `WrongUse` for less than one of either."""

    count: int
    steps: int

    def __post_init__(self) -> None:
        _check(count=self.count, steps=self.steps)

    @property
    def seen(self) -> int:
        return self.count * self.steps

    def count_steps(self, missing: Slots = NO_SLOTS) -> int:
        return self.steps

    def divide(self, missing: Slots = NO_SLOTS) -> Iterator[Epoch]:
        order = np.delete(np.arange(self.count), missing)
        bounds = np.array([0, len(order)])
        for step in range(self.steps):
            yield Epoch(step, order, bounds, 0, whole=True)


@dataclass(frozen=True)
class Minibatches:
    """Every epoch goes once through all `count` samples, in an order of its own.

    Its batches have `size` samples at most, and are of equal size, as near as can be. Raises `WrongUse` for
    less than one of anything.
    """

    count: int
    size: int
    epochs: int
    seed: int = 0

    def __post_init__(self) -> None:
        _check(count=self.count, size=self.size, epochs=self.epochs)

    @property
    def seen(self) -> int:
        return self.count * self.epochs

    def count_steps(self, missing: Slots = NO_SLOTS) -> int:
        return self.epochs * (len(split_evenly(self.count - len(missing), self.size)) - 1)

    def divide(self, missing: Slots = NO_SLOTS) -> Iterator[Epoch]:
        there = np.delete(np.arange(self.count), missing)
        bounds = split_evenly(len(there), self.size)
        for epoch in range(self.epochs):
            key = derive_key(self.seed, epoch)
            order = there[Shuffled(len(there), key).take(0, len(there))]
            yield Epoch(epoch * (len(bounds) - 1), order, bounds, key)


@dataclass(frozen=True)
class OverlappedRuns:
    """How `hw.Tuner` trains: run after run, whose samples come one run after the other.

    `sizes` are the samples of each run. A sample has a slot for each of its `variants`, which take turns
    from epoch to epoch: the slots of a run are those of its first variant, of its second, and so on. An
    epoch of run r goes through one of r + 1 parts of all that has come.
    """

    sizes: tuple[int, ...]
    size: int
    epochs: int
    variants: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        _check(runs=len(self.sizes), size=self.size, epochs=self.epochs, variants=self.variants)
        _check(samples=min(self.sizes))

    @property
    def count(self) -> int:
        return self.variants * sum(self.sizes)

    @property
    def seen(self) -> int:
        pools = accumulate(self.sizes)
        return sum(self.epochs * pool // (run + 1) for run, pool in enumerate(pools))

    def count_steps(self, missing: Slots = NO_SLOTS) -> int:
        sound, steps = np.ones(self.count, bool), 0
        sound[missing] = False
        for run in range(len(self.sizes)):
            # Variants take turns, so pools come again after so many epochs.
            there = [
                int(sound[self.pool(run, turn)].sum()) for turn in range(min(self.variants, self.epochs))
            ]
            for epoch in range(self.epochs):
                begin, end = _part_of(there[epoch % self.variants], epoch, run)
                steps += len(split_evenly(end - begin, self.size)) - 1
        return steps

    def divide(self, missing: Slots = NO_SLOTS) -> Iterator[Epoch]:
        sound, first = np.ones(self.count, bool), 0
        sound[missing] = False
        for run in range(len(self.sizes)):
            for epoch in range(self.epochs):
                found = self.epoch(run, epoch, sound=sound, first=first)
                yield found
                first += len(found)

    def epoch(self, run: int, epoch: int, *, sound: NDArray[np.bool_], first: int = 0) -> Epoch:
        """An epoch of a run, whose first step has this number; `sound` are slots that have features.

        Raises `ModelError` where none has.
        """
        pool = self.pool(run, epoch)
        there = pool[sound[pool]]
        if not len(there):
            raise ModelError(f"none of the {len(pool):,} samples of run {run + 1} has features")
        turn, part = divmod(epoch, run + 1)
        begin, end = _part_of(len(there), epoch, run)
        key = derive_key(self.seed, run, turn)
        order = there[Shuffled(len(there), key).take(begin, end)]
        return Epoch(first, order, split_evenly(len(order), self.size), key, part, run + 1)

    def slots_of(self, variant: int) -> Slots:
        """The slot that each sample has for a variant, run after run."""
        firsts = accumulate((self.variants * size for size in self.sizes[:-1]), initial=0)
        pairs = zip(firsts, self.sizes, strict=True)
        return np.concatenate([first + variant * size + np.arange(size) for first, size in pairs])

    def pool(self, run: int, epoch: int) -> Slots:
        """The slot of each sample of this run and those before it, of the variant whose turn it is."""
        firsts = accumulate((self.variants * size for size in self.sizes[:run]), initial=0)
        return np.concatenate(
            [
                first + (np.arange(size) + epoch) % self.variants * size + np.arange(size)
                for first, size in zip(firsts, self.sizes[: run + 1], strict=True)
            ]
        )


KINDS = {"full": FullBatch, "minibatches": Minibatches, "runs": OverlappedRuns}
"""Every kind by the name that a journal has for it."""


def describe(batches: Batches) -> dict[str, Any]:
    """As a journal holds it."""
    for name, kind in KINDS.items():
        if type(batches) is kind:
            return {"kind": name, **msgspec.to_builtins(batches)}
    raise WrongUse(f"batches are {type(batches).__name__}; a journal knows {', '.join(_names())}")


def restore(spec: Mapping[str, Any]) -> FullBatch | Minibatches | OverlappedRuns:
    """What `describe` was given; raises `ValueError` for what it did not give."""
    plain = dict(spec)
    kind = KINDS.get(plain.pop("kind", ""))
    if kind is None:
        raise ValueError(f"its batches are {spec.get('kind')!r}, this version knows {', '.join(KINDS)}")
    found: FullBatch | Minibatches | OverlappedRuns = msgspec.convert(plain, kind)
    return found


def _part_of(count: int, epoch: int, run: int) -> tuple[int, int]:
    """Which of so many samples an epoch of a run goes through."""
    part = epoch % (run + 1)
    begin, end = (count * each // (run + 1) for each in (part, part + 1))
    return begin, max(end, begin + 1)  # where nearly all have failed, there are more parts than samples


def split_evenly(count: int, size: int) -> Slots:
    """Where batches of at most `size` begin, and where the last one ends."""
    batches = max(1, -(-count // size))
    return np.arange(batches + 1) * (count // batches) + np.minimum(np.arange(batches + 1), count % batches)


def _names() -> list[str]:
    return sorted(kind.__name__ for kind in KINDS.values())


def _check(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise WrongUse(f"{name} is {count}; it must be at least 1")
