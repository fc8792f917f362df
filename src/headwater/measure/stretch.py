"""Stretches: some consecutive batches of a run, with what was expected of them and what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

_ENDLESS = {"link", "store_cores", "trainer_cores", "trainer", "seconds", "store_seconds_per_visit"}
"""Numbers that may be infinite, which JSON writes as null."""


class SiteRates(Struct, frozen=True):
    """What one store and the link to it can do: bytes per second, cores, samples per second.

    What is not known is infinite. `store_speed` is that of a store's core over one of the trainer, and
    `store_seconds_per_visit` what a user lets plans spend there, on average.
    """

    link: float
    store_cores: float
    trainer_cores: float = math.inf
    trainer: float = math.inf
    store_speed: float = 1.0
    store_seconds_per_visit: float = math.inf


class Amounts(Struct, frozen=True):
    """What some samples cost: CPU seconds of store and trainer, and seconds of the clock in all."""

    samples: int = 0
    bytes: float = 0.0
    store_seconds: float = 0.0
    trainer_seconds: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            self.samples + other.samples,
            self.bytes + other.bytes,
            self.store_seconds + other.store_seconds,
            self.trainer_seconds + other.trainer_seconds,
            self.seconds + other.seconds,
        )


class Stretch(Struct, frozen=True):
    """Some consecutive batches from one store.

    `phase` is what it was for: "link", nothing to try; "explore", ways are tried; "plan"; "guard", files.

    `none` is what they would have cost without offloading; it and `predicted` are None where nothing was
    predicted. `waited` and `held` are seconds that the training loop waited for batches, by cause, and that
    it kept them. `ways` counts samples by the way that was asked for. `rates` are as found at its end,
    `assumed` those with which it was planned.
    """

    epoch: int
    site: str
    phase: str
    measured: Amounts
    rates: SiteRates
    ways: list[int]
    predicted: Amounts | None = None
    none: Amounts | None = None
    assumed: SiteRates | None = None
    waited: dict[str, float] = {}
    held: float = 0.0
    pushed_back: int = 0
    reason: str = ""

    @property
    def busy(self) -> float | None:
        """Share of the time in which the training loop had something to do; None if no time passed."""
        total = self.held + sum(self.waited.values())
        return self.held / total if total > 0 else None

    def joined(self, later: Stretch) -> Stretch:
        """Both as one; rates and reason are those of the later."""
        names = self.waited | later.waited
        return msgspec.structs.replace(
            later,
            measured=self.measured + later.measured,
            ways=[sum(pair) for pair in zip(self.ways, later.ways, strict=True)],
            predicted=_total(self.predicted, later.predicted),
            none=_total(self.none, later.none),
            waited={name: self.waited.get(name, 0.0) + later.waited.get(name, 0.0) for name in names},
            held=self.held + later.held,
            pushed_back=self.pushed_back + later.pushed_back,
        )


def with_infinity(value: Any) -> Any:
    """Plain data from JSON, with the numbers that were infinite when it was written."""
    if isinstance(value, list):
        return [with_infinity(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: math.inf if each is None and name in _ENDLESS else with_infinity(each)
        for name, each in value.items()
    }


def _total(first: Amounts | None, second: Amounts | None) -> Amounts | None:
    return None if first is None or second is None else first + second


def pair_up(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Every two that follow each other at one store in one phase as one, in the place of the first."""
    found: list[Stretch] = []
    single: dict[tuple[str, str, bool], int] = {}
    for stretch in stretches:
        kind = stretch.site, stretch.phase, stretch.predicted is None
        place = single.pop(kind, None)
        if place is None:
            single[kind] = len(found)
            found.append(stretch)
        else:
            found[place] = found[place].joined(stretch)
    return found
