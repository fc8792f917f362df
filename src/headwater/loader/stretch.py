"""Batches that were planned together, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from headwater.loader.gauge import Spell
from headwater.loader.phases import REASONS
from headwater.measure.epochplan import SitePlan
from headwater.measure.logbook import Amounts, SiteRates, WayTotals
from headwater.measure.logbook import Stretch as Entry
from headwater.measure.profile import Seen
from headwater.plan.offload import Load, OffloadPlan, Rates


@dataclass
class Found:
    """What came from one store."""

    samples: int = 0
    asked: int = 0
    pushed_back: int = 0
    bytes: int = 0
    file_bytes: int = 0
    unsized: int = 0
    """Samples whose files are not in `file_bytes`, because their sizes are not known."""
    store_seconds: float = 0.0
    trainer_seconds: float = 0.0

    def add(self, seen: Seen, rows: NDArray[np.bool_]) -> None:
        crossed = rows & seen.crossed
        self.samples += int(rows.sum())
        self.asked += int((seen.ways[crossed] > 0).sum())
        self.pushed_back += int((~seen.done & seen.able)[crossed].sum())
        self.bytes += int(seen.bytes[rows].sum())
        self.file_bytes += int(seen.file_bytes[crossed].sum())
        self.unsized += int((seen.file_bytes[crossed] == 0).sum())
        self.store_seconds += float(seen.store_seconds[rows].sum())
        self.trainer_seconds += float(seen.trainer_seconds[rows].sum())

    def load(self, rates: Rates) -> Load:
        """What it asked of the four resources."""
        return Load(self.samples, self.bytes, self.trainer_seconds, self.store_seconds, rates)

    def load_of_files(self, rates: Rates, file: WayTotals) -> Load:
        """What the same samples would have asked as files, of which `file` says the usual cost."""
        count = max(1, file.done)
        sent = self.file_bytes + self.unsized * file.bytes / count
        return Load(self.samples, sent, self.samples * file.trainer_seconds / count, 0.0, rates)


@dataclass(eq=False)
class Stretch:
    """Tasks that were planned together; `left` have not been handed over yet. There are `choices` ways."""

    epoch: int
    phase: str
    owners: NDArray[np.intp]
    ways: NDArray[np.uint8]
    left: int
    found: Sequence[Found]
    choices: int
    plans: dict[int, OffloadPlan] = field(default_factory=dict)

    @property
    def is_relievable(self) -> bool:
        """Whether something is the slowest that offloading can help."""
        return any(plan.before.bottleneck in ("link", "trainer CPU") for plan in self.plans.values())

    def planned(self, number: int, site: str) -> SitePlan:
        """What its plan for one of the stores is to change, and why."""
        plan = self.plans[number]
        before, after = (_amounts(len(plan), load) for load in (plan.before, plan.after))
        return SitePlan(site, before, after, _rates(plan.before.rates), plan.reason)

    def entry(
        self, number: int, site: str, *, spell: Spell, rates: SiteRates, waited: dict[str, float]
    ) -> Entry:
        """What is noted of one of the stores; `rates` are as found at its end."""
        found, plan = self.found[number], self.planned(number, site) if number in self.plans else None
        costs = found.samples, found.bytes, found.store_seconds, found.trainer_seconds, spell.seconds
        return Entry(
            epoch=self.epoch,
            site=site,
            phase=self.phase,
            measured=Amounts(*costs),
            rates=rates,
            ways=np.bincount(self.ways[self.owners == number], minlength=self.choices).tolist(),
            assumed=None if plan is None else plan.rates,
            predicted=None if plan is None else plan.after,
            none=None if plan is None else plan.before,
            waited=waited,
            held=spell.held,
            pushed_back=found.pushed_back,
            reason=REASONS[self.phase] if plan is None else plan.reason,
        )


def _amounts(samples: int, load: Load) -> Amounts:
    return Amounts(samples, load.bytes, load.store_seconds, load.trainer_seconds, load.seconds)


def _rates(rates: Rates) -> SiteRates:
    return SiteRates(
        rates.link,
        rates.store_cores,
        rates.trainer_cores,
        rates.trainer,
        rates.store_speed,
        rates.store_seconds_per_visit,
    )


def join(parts: Sequence[Seen]) -> Seen:
    """Samples of one epoch together, all of which have crossed."""
    columns = {
        column.name: np.concatenate([getattr(part, column.name) for part in parts])
        for column in fields(Seen)
        if column.name not in ("epoch", "held")
    }
    return Seen(epoch=parts[0].epoch, **columns)
