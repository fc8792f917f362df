"""Near-duplicates beside the data, whichever and however many stores have it.

One store answers with groups. Shards answer with what tells their samples apart, all at the same time, and
groups are found here, as if all lay in one place: of hashes 96 bytes of each sample cross, of features two of
each number. Of replicas one looks, and another if that one is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.image.fingerprint import VIEWS, WORDS
from headwater.engine.inference import Failed
from headwater.engine.together import all_at_once
from headwater.errors import HeadwaterError, ModelError, SampleCorrupt, WrongUse
from headwater.select.duplicates import Groups, group_hashes, group_vectors, renumber
from headwater.store.base import Store
from headwater.store.client.commission import Answer, Commission
from headwater.store.client.remote import RemoteStore
from headwater.store.fleet import ShardedStore
from headwater.store.jobs.duplicates import unfold
from headwater.store.jobs.record import DUPLICATES
from headwater.store.wire.jobmessages import JobFacts

Advance = Callable[[int], None]
"""Told how many further samples were looked at."""

_HASH_BYTES = 8 * len(VIEWS) * WORDS


@dataclass(frozen=True, eq=False)
class Grouped:
    """A number for each sample of a store, -1 for what is alone; and those that could not be looked at.

    `failures` are the first hundred of each store. `bytes_moved` is what crossed the link.
    """

    groups: Groups
    failures: tuple[Failed, ...] = ()
    bytes_moved: int = 0


def groups_at(store: Store, *, model: str, bound: float, advance: Advance = lambda count: None) -> Grouped:
    """Groups by a job at the store, or at each of several; raises what `Commission.run` does.

    `bound` is how many bits may differ between pictures or, with a model, the least cosine of features.
    Raises `ModelError` for shards that have different models of that name.
    """
    if isinstance(store, ShardedStore):
        parts = [_remote(one) for one in store.stores]
        ask = partial(_ask, model=model, bound=bound, advance=advance, rows=True)
        answers = all_at_once([partial(ask, one) for one in parts], name="headwater-groups")
        return _group_all(store, answers, model=model, bound=bound)
    own = _remote(store)
    found = _ask(own, model=model, bound=bound, advance=advance)
    groups = np.full(len(own.index), -1, np.int32)
    try:
        groups[own.index.position_of(found.chosen.ids)] = unfold(found.chosen.weights)
    except ValueError as error:
        raise HeadwaterError(f"store {own.uri} sends {error}; is it of this version?") from error
    return Grouped(groups, _failures(own, found.job), found.bytes_moved)


def _remote(store: Store) -> RemoteStore:
    if not isinstance(store, RemoteStore):
        raise WrongUse(f"{store.uri} is no store; groups of local data are found in this process")
    return store


def _ask(store: RemoteStore, *, model: str, bound: float, advance: Advance, rows: bool = False) -> Answer:
    told = 0

    def seen(job: JobFacts) -> None:
        nonlocal told
        advance(max(0, job.done - told))
        told = max(told, job.done)

    name = store.known.name
    return Commission(store, "groups").run(
        lambda connection, jobs: jobs.start(DUPLICATES, dataset=name, model=model, bound=bound, rows=rows),
        seen=seen,
    )


def _failures(store: Store, job: JobFacts) -> tuple[Failed, ...]:
    ids = np.array([one.id for one in job.failures], np.int64)
    named = zip(store.index.position_of(ids).tolist(), job.failures, strict=True)
    return tuple(Failed(place, one.id, SampleCorrupt(one.reason)) for place, one in named)


def _group_all(store: ShardedStore, answers: list[Answer], *, model: str, bound: float) -> Grouped:
    """Groups of what came from all shards."""
    if len(versions := dict.fromkeys(one.job.model for one in answers)) > 1:
        found = ", ".join(digest[:12] for digest in versions)
        raise ModelError(f"stores have different models {model!r}: {found}; send all of them the same one")
    groups = np.full(len(store.index), -1, np.int32)
    held = [one.chosen for one in answers if len(one.chosen.ids)]
    if held:
        ids = np.concatenate([one.ids for one in held])
        at = store.index.position_of(ids)
        labels = store.index.labels[at].astype(np.int64)
        rows = _rows([one.rows for one in held], model=model)
        groups[at] = _group(rows, labels, ids, model=model, bound=bound)
    failures = [one for answer in answers for one in _failures(store, answer.job)]
    return Grouped(renumber(groups), tuple(failures), sum(one.bytes_moved for one in answers))


def _rows(parts: list[NDArray[np.uint8]], *, model: str) -> NDArray[Any]:
    """Hashes or features again; raises `HeadwaterError` for bytes that are neither."""
    widths = {part.shape[1] for part in parts}
    width = widths.pop()
    if widths or not width or (width % 2 if model else width != _HASH_BYTES):
        raise HeadwaterError("stores send other bytes than those of samples; are they of this version?")
    rows = np.concatenate(parts)
    return rows.view("<f2") if model else rows.view("<u8").reshape(-1, len(VIEWS), WORDS)


def _group(
    rows: NDArray[Any], labels: NDArray[np.int64], ids: NDArray[np.int64], *, model: str, bound: float
) -> Groups:
    if model:
        return group_vectors(rows, labels, least=bound, ids=ids)
    return group_hashes(rows, labels, most=int(bound), ids=ids)
