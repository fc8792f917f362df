"""Why so much, or nothing, is offloaded: one line for people."""

from __future__ import annotations

import numpy as np

from headwater.plan.offload.load import Load
from headwater.plan.offload.none import Nothing
from headwater.plan.offload.workload import Choice, Policy, Workload


def reason_of(policy: Policy, work: Workload, choice: Choice, after: Load) -> str:
    """In words, with the numbers that decided."""
    before = work.before
    if choice.any():
        return f"{_share(work, choice)}: {policy.explain(before, after)}; {_change(before, after)}"
    return f"nothing is offloaded: {_obstacle(policy, work, before)}"


def _share(work: Workload, choice: Choice) -> str:
    blocks = work.options.blocks()
    offloaded = sum(float(work.visits[rows] @ (choice[rows] != 0)) for rows in blocks)
    return f"{offloaded / float(work.visits.sum()):.1%} of visits are offloaded"


def _change(before: Load, after: Load) -> str:
    first, then = (f"{_seconds(load)} ({load.bottleneck})" for load in (before, after))
    return f"an epoch goes from {first} to {then}"


def _obstacle(policy: Policy, work: Workload, before: Load) -> str:
    if isinstance(policy, Nothing):
        return "the policy is none"
    if before.visits == 0:
        return "no sample is visited"
    if before.bottleneck not in ("link", "trainer CPU"):
        return f"{_slowest(before)}, which offloading cannot help"
    if work.rates.store_cores == 0 or work.rates.store_seconds_per_visit == 0:
        return f"{_slowest(before)}, but the store has no cores to spare"
    if not _any_better(work, before.bottleneck):
        return f"{_slowest(before)}, but no option relieves it for any sample"
    return f"{_slowest(before)}, but nothing that the policy may choose makes an epoch shorter"


def _slowest(load: Load) -> str:
    times = f"{_seconds(load)} an epoch, {load.margin:.3g} times the next"
    return f"the {load.bottleneck} is the slowest ({times})"


def _seconds(load: Load) -> str:
    return f"{load.seconds:.3g} s" if load.seconds < 1000 else f"{load.seconds:,.0f} s"


def _any_better(work: Workload, bottleneck: str) -> bool:
    """Whether any option of any visited sample asks less of what is the bottleneck."""
    for rows in work.options.blocks():
        sent, trainer, _ = work.columns(rows)
        costs = sent if bottleneck == "link" else np.where(np.isfinite(sent), trainer, np.inf)
        if ((costs[:, 1:] < costs[:, :1]).any(axis=1) & (work.visits[rows] > 0)).any():
            return True
    return False
