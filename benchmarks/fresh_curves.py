"""What a fresh random share in every epoch reaches in so many steps or seconds: the bar for selectors."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from experiments import Difference, Found, Run, finals, interpolate, middle
from headwater.select.fresh import Fresh
from measuring import Cell, Table
from selecting_runs import PARTS, Setting

FULL = "full"
SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
"""Between which it is interpolated; all of the data is the last."""
COLUMNS = (
    "accuracy, %",
    "- full",
    "- fresh at equal steps",
    "- fresh at equal time",
    "steps, of full",
    "CPU s, of full",
    *PARTS,
)


def named(what: str, share: float) -> str:
    return f"{what}, {share:.0%}"


FRESH = {named("fresh", share): Setting(Fresh(share)) for share in SHARES}
CURVE = {**FRESH, FULL: Setting()}


class Curve:
    """Runs of `CURVE`, or of some of it, on one dataset.

    Steps and seconds are medians over seeds, accuracies are those of each seed.
    """

    def __init__(self, found: Found, names: Iterable[str] = CURVE) -> None:
        self._runs = [found.of(name) for name in names]
        self.full = self._runs[-1]

    def at_equal(self, of: Callable[[Run], float], runs: Sequence[Run]) -> list[float]:
        """Its accuracy with each seed, where it has spent as much as these runs; at most that of all data."""
        spent, wanted = [middle(some, of) for some in self._runs], middle(runs, of)
        seeds = zip(*self._runs, strict=True)
        return [interpolate(spent, [run.final for run in own], wanted) for own in seeds]

    def table(self, title: str, rows: Mapping[str, Sequence[Run]]) -> Table:
        """With the columns `COLUMNS`; the last of them are shares of the time."""
        return Table((title, *COLUMNS), tuple(self._row(name, runs) for name, runs in rows.items()))

    def _row(self, name: str, runs: Sequence[Run]) -> tuple[Cell, ...]:
        own, full = finals(runs), finals(self.full)
        spent, seconds = (middle(some, cpu_of) for some in (runs, self.full))
        steps = middle(runs, steps_of) / middle(self.full, steps_of)
        parts = (f"{middle(runs, part_of(part)) / spent:.1%}" for part in PARTS)
        return (
            name,
            f"{statistics.fmean(own):.2f}",
            str(Difference.of(own, full)),
            str(Difference.of(own, self.at_equal(steps_of, runs))),
            str(Difference.of(own, self.at_equal(cpu_of, runs))),
            f"{steps:.2f}",
            f"{spent / seconds:.2f}",
            *parts,
        )


def cpu_of(run: Run) -> float:
    return run.cpu


def steps_of(run: Run) -> float:
    return float(sum(run.steps))


def part_of(part: str) -> Callable[[Run], float]:
    def find(run: Run) -> float:
        return run.parts[part]

    return find
