"""The policies by name, and the one way to a plan."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.plan.offload.all import Everything
from headwater.plan.offload.efficiency import GreedyByEfficiency
from headwater.plan.offload.fixed import Fixed
from headwater.plan.offload.hull import ConvexHull
from headwater.plan.offload.load import Rates
from headwater.plan.offload.none import Nothing
from headwater.plan.offload.options import Options
from headwater.plan.offload.plan import OffloadPlan
from headwater.plan.offload.reasons import reason_of
from headwater.plan.offload.throughput import OneForAll
from headwater.plan.offload.workload import Policy, Workload

POLICIES: MappingProxyType[str, Callable[..., Policy]] = MappingProxyType(
    {
        "none": Nothing,
        "all": Everything,
        "fixed": Fixed,
        "throughput": OneForAll,
        "efficiency": GreedyByEfficiency,
        "hull": ConvexHull,
    }
)
FREE = ("throughput", "efficiency", "hull")
"""Those that may leave things as they are, so that they are never predicted to be slower than that."""


def make_plan(
    policy: str | Policy, options: Options, *, rates: Rates, weights: NDArray[np.generic] | None = None
) -> OffloadPlan:
    """Choose an option for every sample; `weights` are visits per epoch, one each if not given.

    The same plan for the same numbers, always. `throughput`, `efficiency` and `hull` are never predicted to
    take longer than `none`, nor to spend more than the store's cap. Raises WrongUse for what cannot be.
    """
    chosen = _find(policy)
    work = Workload.of(options, rates=rates, weights=weights)
    name, before = _name_of(chosen), work.before
    choice = chosen.choose(work)
    after = work.load(choice)
    # sums in another order are rounded in another way: the promise is kept all the same
    if name in FREE and not (after.seconds <= before.seconds and after.keeps_cap):
        choice, after = work.raw(), before
    return OffloadPlan(name, options.ways, choice, before, after, reason_of(chosen, work, choice, after))


def _find(policy: str | Policy) -> Policy:
    if not isinstance(policy, str):
        return policy
    if policy not in POLICIES:
        raise WrongUse(f"there is no policy {policy!r}; choose from {', '.join(POLICIES)}")
    if policy == "fixed":
        raise WrongUse("policy 'fixed' takes one option for all; give `Fixed(Offload(cut))` with its cut")
    return POLICIES[policy]()


def _name_of(policy: Policy) -> str:
    names = [name for name, kind in POLICIES.items() if isinstance(kind, type) and isinstance(policy, kind)]
    return names[0] if names else type(policy).__name__
