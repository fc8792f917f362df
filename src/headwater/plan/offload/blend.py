"""Two choices made one: some samples of the first, the rest of the second, whatever is quickest."""

from __future__ import annotations

import numpy as np

from headwater.plan.offload.ladder import loads_after
from headwater.plan.offload.load import Loads
from headwater.plan.offload.workload import Choice, Workload


def blend(work: Workload, first: Choice, second: Choice) -> Choice:
    """Samples that differ go over to the second choice one by one, in order, as long as that helps.

    Never slower than either.
    """
    rows = np.flatnonzero(first != second)
    changes = np.empty((3, len(rows)))
    for change, column in zip(changes, work.columns(slice(None)), strict=True):
        change[:] = column[rows, second[rows]]
        change -= column[rows, first[rows]]
        change *= work.visits[rows]
    taken = rows[: Loads.first_best(loads_after(work.load(first), changes))]
    mixed = first.copy()
    mixed[taken] = second[taken]
    return mixed
