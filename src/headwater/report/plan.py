"""The chapter on the plan of an epoch, as its run has kept it."""

from __future__ import annotations

from headwater.measure.epochplan import EpochPlan, SitePlan
from headwater.measure.logbook import Logbook
from headwater.report.page import Chapter, Table
from headwater.report.ways import way_names


def plan_chapter(logbook: Logbook, plan: EpochPlan) -> Chapter:
    """How many samples were planned, which way, and what that was to change at each store."""
    counts = [(name, count) for name, count in zip(way_names(logbook), plan.counts(), strict=True) if count]
    words = [f"{sum(count for _, count in counts):,} of {len(plan):,} samples were planned."]
    if counts:
        words.append(f"{'; '.join(f'{name}: {count:,}' for name, count in counts)}.")
    words += [f"{part.site}, at last: {part.reason}." for part in plan.sites.values()]
    columns = ("store", "samples", "as files", "planned", "time without", "time planned", "store CPU")
    rows = tuple(_row(part) for part in plan.sites.values())
    return Chapter(f"The plan of epoch {plan.epoch}", "\n\n".join(words), table=Table(columns, rows))


def _row(part: SitePlan) -> tuple[str, ...]:
    sizes = (f"{amounts.bytes / 1e6:,.2f} MB" for amounts in (part.before, part.after))
    times = (f"{amounts.seconds:,.2f} s" for amounts in (part.before, part.after))
    return part.site, f"{part.after.samples:,}", *sizes, *times, f"{part.after.store_seconds:,.2f} s"
