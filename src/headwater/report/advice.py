"""What would make an epoch shorter, in words."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.measure import verdict
from headwater.measure.logbook import SiteRates
from headwater.measure.verdict import format_link, format_trainer

__all__ = ["advise", "format_link", "format_trainer"]


def advise(times: Mapping[str, float], rates: SiteRates) -> str:
    """What moves the bottleneck, and where to; `times` are seconds of the four resources under the plan."""
    found = {
        "trainer": rates.trainer,
        "link": rates.link,
        "trainer CPU": rates.trainer_cores,
        "store CPU": rates.store_cores,
    }
    return verdict.advise(times, found)
