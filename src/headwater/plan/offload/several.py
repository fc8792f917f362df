"""One plan for each of several stores, which work side by side and share the trainer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from headwater.plan.offload.load import Rates
from headwater.plan.offload.options import Options
from headwater.plan.offload.plan import OffloadPlan
from headwater.plan.offload.policies import make_plan


def plan_each(
    policy: str,
    options: Options,
    *,
    owners: NDArray[np.intp],
    rates: Mapping[int, Rates],
    weights: NDArray[np.generic] | None = None,
) -> dict[int, OffloadPlan]:
    """By number of the store, of those that `rates` names and that have samples.

    `owners` has the number of each sample's store, and rates are those of a store that has the trainer for
    itself: of trainer and trainer CPU each gets the share of its samples.
    """
    plans = {}
    for number, its in rates.items():
        (rows,) = np.nonzero(owners == number)
        if len(rows):
            part = options if len(rows) == len(options) else options.take(rows)
            visits = None if weights is None else weights[rows]
            share = len(rows) / len(owners)
            plans[number] = make_plan(policy, part, rates=its.share(share), weights=visits)
    return plans
