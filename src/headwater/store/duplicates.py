"""Near-duplicates beside the data, whichever and however many stores have it.

Shards find groups among their own samples, at the same time: two that are alike and lie at different stores
are in no group. Hashes are not exchanged. Of replicas one looks, and another if that one is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headwater.engine.inference import Failed
from headwater.engine.together import all_at_once
from headwater.errors import HeadwaterError, SampleCorrupt, WrongUse
from headwater.store.base import Store
from headwater.store.client.commission import Commission
from headwater.store.client.remote import RemoteStore
from headwater.store.fleet import ShardedStore
from headwater.store.jobs.duplicates import unfold
from headwater.store.jobs.record import DUPLICATES
from headwater.store.wire.jobmessages import JobFacts

Advance = Callable[[int], None]
"""Told how many further samples were looked at."""


@dataclass(frozen=True, eq=False)
class Grouped:
    """A number for each sample of a store, -1 for what is alone; and those that could not be looked at.

    `failures` are the first hundred of each store. `bytes_moved` is what crossed the link.
    """

    groups: NDArray[np.int32]
    failures: tuple[Failed, ...] = ()
    bytes_moved: int = 0


def groups_at(store: Store, *, model: str, bound: float, advance: Advance = lambda count: None) -> Grouped:
    """Groups by a job at the store, or at each of several; raises what `Commission.run` does.

    `bound` is how many bits may differ between pictures or, with a model, the least cosine of features.
    """
    if isinstance(store, ShardedStore):
        ask = partial(groups_at, model=model, bound=bound, advance=advance)
        return _unite(all_at_once([partial(ask, one) for one in store.stores], name="headwater-groups"))
    if not isinstance(store, RemoteStore):
        raise WrongUse(f"{store.uri} is no store; groups of local data are found in this process")
    return _ask(store, model=model, bound=bound, advance=advance)


def _ask(store: RemoteStore, *, model: str, bound: float, advance: Advance) -> Grouped:
    told = 0

    def seen(job: JobFacts) -> None:
        nonlocal told
        advance(max(0, job.done - told))
        told = max(told, job.done)

    found = Commission(store, "groups").run(
        lambda connection, jobs: jobs.start(DUPLICATES, dataset=store.known.name, model=model, bound=bound),
        seen=seen,
    )
    groups = np.full(len(store.index), -1, np.int32)
    try:
        groups[store.index.position_of(found.ids)] = unfold(found.numbers)
    except ValueError as error:
        raise HeadwaterError(f"store {store.uri} sends {error}; is it of this version?") from error
    ids = np.array([one.id for one in found.job.failures], np.int64)
    at = store.index.position_of(ids).tolist()
    named = zip(at, found.job.failures, strict=True)
    failures = tuple(Failed(place, one.id, SampleCorrupt(one.reason)) for place, one in named)
    return Grouped(groups, failures, found.bytes_moved)


def _unite(parts: list[Grouped]) -> Grouped:
    """One after the other, as the fleet has their samples."""
    groups, failures = [], []
    begin = first = 0
    for part in parts:
        groups.append(np.where(part.groups >= 0, part.groups + first, -1).astype(np.int32))
        failures += [Failed(one.position + begin, one.id, one.error) for one in part.failures]
        first += int(part.groups.max(initial=-1)) + 1
        begin += len(part.groups)
    moved = sum(part.bytes_moved for part in parts)
    return Grouped(np.concatenate(groups), tuple(failures), moved)
