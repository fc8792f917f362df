"""What a run would select, from the table that it has saved; and what of that a table cannot tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headwater.loader.duplicates import Duplicates
from headwater.loader.knowledge import BESIDE, ENDED, SELECTION, past_of
from headwater.measure.signals import Signals
from headwater.select.samples import Samples
from headwater.select.selecting import Selector, complete_selection, make_selection, select_all
from headwater.select.selection import Selection


@dataclass(frozen=True, eq=False)
class Foretold:
    """What would be selected; `unknown` are reasons for which the run may do otherwise, a line each."""

    selection: Selection
    unknown: tuple[str, ...] = ()


def foretell(selector: Selector, samples: Samples, signals: Signals) -> Foretold:
    """What the run of this table would select by this selector: near-duplicates left out if it does so.

    Everything, if it is the run's own selector and has ended. Raises as `make_selection` does.
    """
    note = signals.notes.get(SELECTION, {})
    own = note.get("selector") in (selector.name, BESIDE.format(selector.name))
    redundancy, unknown = _redundancy(note.get("duplicates"), samples, signals)
    ended = _ended(signals) if own else ""
    if ended:
        found = select_all(samples, name=selector.name, reason=f"everything: {ended}")
        return Foretold(complete_selection(samples, found, redundancy=redundancy), unknown)
    if note.get("selector") == BESIDE.format(selector.name):
        unknown += (
            "stores select for this run, by a proxy of its model; here it is by what the trainer knows",
        )
    return Foretold(make_selection(selector, samples, redundancy=redundancy), unknown)


def _ended(signals: Signals) -> str:
    """Why the run selects no more; empty while it does."""
    state = signals.notes.get(SELECTION, {}).get("state", {})
    return str(signals.notes.get(ENDED, "") or state.get("dropped", ""))


def _redundancy(
    habits: dict[str, Any] | None, samples: Samples, signals: Signals
) -> tuple[str, tuple[str, ...]]:
    """What the run does with near-duplicates, and what of it cannot be told from a table."""
    if habits is None:
        return "keep", ()
    duplicates, cached = Duplicates(samples.group, habits["mode"]), habits["cached"]
    serves = duplicates.serves(samples.stalled, cached=cached)
    unknown: tuple[str, ...] = ()
    if serves:
        unknown += (
            "which samples a near-duplicate stands in for: that is up to what the cache holds by then",
        )
    if duplicates.mode == "auto" and cached and samples.epoch not in {one.epoch for one in past_of(signals)}:
        what = "stand in for each other" if serves else "are left out"
        unknown += (
            f"how long training waits before epoch {samples.epoch}: if it is {samples.stalled:.0%} of its "
            f"time, near-duplicates {what}",
        )
    return ("keep" if serves else "drop"), unknown
