"""What offloading promised and what came of it, summed up per store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headwater.measure.logbook import Amounts, Logbook, SiteRates, Stretch
from headwater.measure.verdict import slowest
from headwater.plan.offload import Load, Rates

RESOURCES = ("trainer", "link", "trainer CPU", "store CPU")


@dataclass(frozen=True)
class Balance:
    """The stretches of one store, as one: those that were planned, or else those that came as files.

    `before` is what they would have cost without offloading, `predicted` what the plans said; None if there
    were none. Times are seconds that each of the four resources needs by the model, before and after.
    `reason` and `rates` are those of the last stretch, and `assumed` the rates that its plan was made with.
    """

    site: str
    before: Amounts
    predicted: Amounts | None
    measured: Amounts
    times_before: Mapping[str, float]
    times_after: Mapping[str, float]
    pushed_back: int
    reason: str
    rates: SiteRates
    assumed: SiteRates

    @property
    def bottleneck_before(self) -> str:
        return slowest(self.times_before)

    @property
    def bottleneck_after(self) -> str:
        return slowest(self.times_after)

    @classmethod
    def of(cls, stretches: Sequence[Stretch]) -> Balance:
        """At least one stretch of one store."""
        last, measured = stretches[-1], [stretch.measured for stretch in stretches]
        without = [stretch.none or stretch.measured for stretch in stretches]
        plans = [stretch.predicted for stretch in stretches if stretch.predicted is not None]
        rates = [stretch.assumed or stretch.rates for stretch in stretches]
        return cls(
            last.site,
            _sum(without),
            _sum(plans) if plans else None,
            _sum(measured),
            _times(without, rates),
            _times(plans or without, rates),
            sum(stretch.pushed_back for stretch in stretches),
            last.reason,
            last.rates,
            rates[-1],
        )


def balances(logbook: Logbook) -> list[Balance]:
    """One per store of which enough is known, the one with the most samples first."""
    planned: dict[str, list[Stretch]] = {}
    files: dict[str, list[Stretch]] = {}
    for stretch in logbook.stretches:
        if stretch.predicted is not None and stretch.none is not None:
            planned.setdefault(stretch.site, []).append(stretch)
        elif stretch.rates.link > 0 and not any(stretch.ways[1:]):
            files.setdefault(stretch.site, []).append(stretch)
    found = [Balance.of(stretches) for stretches in (files | planned).values()]
    return sorted(found, key=lambda balance: -balance.measured.samples)


def to_rates(rates: SiteRates) -> Rates:
    """What plans are made with."""
    return Rates(
        link=rates.link,
        store_cores=rates.store_cores,
        trainer_cores=rates.trainer_cores,
        trainer=rates.trainer,
        store_speed=rates.store_speed,
        store_seconds_per_visit=rates.store_seconds_per_visit,
    )


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    return sum(amounts, Amounts())


def _times(amounts: Sequence[Amounts], rates: Sequence[SiteRates]) -> dict[str, float]:
    """Seconds of each resource, each stretch at its own rates."""
    found = dict.fromkeys(RESOURCES, 0.0)
    for each, its in zip(amounts, rates, strict=True):
        load = Load(each.samples, each.bytes, each.trainer_seconds, each.store_seconds, to_rates(its))
        for name, seconds in load.times.items():
            found[name] += seconds
    return found
