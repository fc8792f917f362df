"""All methods on one request, side by side: what each costs, and how near it comes to training again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from headwater.train.replay.journal import Journal
from headwater.train.replay.outcome import Retrained
from headwater.train.replay.retraining import METHODS, retrain

NOTHING = "nothing"
"""Keeping the old weights: what every method is measured against."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """What came of each method, by name.

    `ratios` are distances to training again over that of doing nothing: 0 is as good as training again, 1 no
    better than the old weights.
    """

    outcomes: Mapping[str, Retrained]
    ratios: Mapping[str, float]

    def __str__(self) -> str:
        rows = [("method", "distance ratio", "rows gone through", "CPU s")]
        rows.append((NOTHING, "1", "0.0%", "0"))
        for name, done in self.outcomes.items():
            rows.append((name, f"{self.ratios[name]:.2g}", f"{done.work:.1%}", f"{done.seconds:.3g}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        said = {done.reason for done in self.outcomes.values() if done.reason}
        return "\n".join([*lines, *sorted(said)])


def compare_methods(
    journal: Journal, remove: Iterable[int] = (), add: Iterable[int] = (), *, tolerance: float = 0.01
) -> Comparison:
    """Every method of `hw.retrain` on one request, `exact` included, by which the others are judged."""
    gone, new = list(remove), list(add)
    outcomes = {name: retrain(journal, gone, new, method=name, tolerance=tolerance) for name in METHODS}
    exact = outcomes["exact"].weights
    nothing = float(np.linalg.norm(exact - journal.weights))
    apart = {name: float(np.linalg.norm(done.weights - exact)) for name, done in outcomes.items()}
    # Where training again changes nothing, there is nothing to be near to.
    return Comparison(outcomes, {name: each / nothing if nothing else 0.0 for name, each in apart.items()})
