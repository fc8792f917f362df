"""Selection beside the data, whichever and however many stores have it, or this process.

Shards select among their own samples, at the same time; what they select is one selection. Of replicas one
selects, and another if that one is lost.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from headwater.engine.chain import Chain
from headwater.engine.crew import Crew, available_cores
from headwater.engine.inference import Extraction
from headwater.engine.together import all_at_once
from headwater.errors import WrongUse
from headwater.models.registry import Registry
from headwater.models.runtime import Engine
from headwater.models.version import ModelVersion
from headwater.plan.offload import Offload
from headwater.select.weights import balance
from headwater.store.base import Store
from headwater.store.client.commission import Over
from headwater.store.client.errand import Abandoned
from headwater.store.client.remote import RemoteStore
from headwater.store.client.selecting import Bring, Selected, Selecting
from headwater.store.features import Variation
from headwater.store.fleet import ShardedStore
from headwater.store.jobs.record import SELECT, JobRecord, now
from headwater.store.jobs.runner import Running
from headwater.store.jobs.select import COUNTS, Sieve, select
from headwater.store.jobs.selections import Selections
from headwater.store.wire.jobmessages import SelectionWish


class Selects(Protocol):
    """Who selects among some samples."""

    def run(self, model: str, wish: SelectionWish, *, over: Over = ...) -> Selected:
        """With a version of a model; raises what `client.selecting.Selecting.run` does."""
        ...


def selects_at(store: Store, *, bring: Bring = lambda connection: 0) -> Selects:
    """The stores that hold a dataset; raises `WrongUse` for data that no store serves.

    `bring` sees to it that one of them holds the version.
    """
    if isinstance(store, ShardedStore):
        return _Shards([selects_at(one, bring=bring) for one in store.stores])
    if isinstance(store, RemoteStore):
        return Selecting(store, bring=bring)
    raise WrongUse(f"{store.uri} is no store; what is selected of local data is selected in this process")


class _Shards:
    """Several stores, each with samples that the others have not."""

    def __init__(self, parts: Sequence[Selects]) -> None:
        self._parts = parts

    def run(self, model: str, wish: SelectionWish, *, over: Over = lambda: False) -> Selected:
        calls = [partial(part.run, model, wish, over=over) for part in self._parts]
        return unite(all_at_once(calls, name="headwater-select"))


def unite(parts: Sequence[Selected]) -> Selected:
    """One selection of all; what a part's samples weigh together is as much as the part has samples.

    Weights have mean 1, and are not clipped.
    """
    weights = [part.weights * (part.samples / max(1, len(part.ids))) for part in parts]
    reasons = dict.fromkeys(part.reason for part in parts)
    return Selected(
        np.concatenate([part.ids for part in parts]),
        balance(np.concatenate(weights), clip=math.inf),
        sum(part.samples for part in parts),
        "; ".join(reasons),
        counts={name: sum(part.counts.get(name, 0) for part in parts) for name in COUNTS},
        seconds=max(part.seconds for part in parts),
        bytes_moved=sum(part.bytes_moved for part in parts),
    )


class SelectingHere:
    """Local data: the same job in this process. What it keeps between rounds lies in a folder of its own."""

    def __init__(self, store: Store, registry: Registry, folder: str | os.PathLike[str]) -> None:
        self._store, self._registry, self._selections = store, registry, Selections(Path(folder))

    def run(self, model: str, wish: SelectionWish, *, over: Over = lambda: False) -> Selected:
        record = JobRecord(
            id=uuid.uuid4().hex[:16],
            kind=SELECT,
            dataset="",
            version=self._store.index.version,
            model=model,
            by="",
            begun=now(),
            selection=wish,
        )
        running = Running(record, lambda record: None, over)
        with closing(Crew(available_cores(), self._store.readers)) as crew:
            select(self._sieve(crew), running)
        if not running.record.result:
            raise Abandoned("nobody waits for this selection any more")
        kept, done = self._selections.get(record.id), running.record
        seconds = sum(value for name, value in done.figures.items() if name.endswith("_seconds"))
        return Selected(
            kept.ids, kept.weights, len(self._store.index), done.said, counts=done.counts, seconds=seconds
        )

    def _sieve(self, crew: Crew) -> Sieve:
        return Sieve(
            dataset="",
            index=self._store.index,
            registry=self._registry,
            selections=self._selections,
            features=lambda version: None,
            extraction=partial(self._extraction, crew),
        )

    def _extraction(self, crew: Crew, version: ModelVersion, variation: Variation) -> Extraction:
        chain = Chain(variation.pipeline(version), variation.seed)
        # several batches at once, a core each: a session that shares cores with others waits for them
        engine = Engine(self._registry.get(version.digest), threads=1)
        return Extraction(lambda: self._store.reader(chain, (Offload(0),)), chain, engine, crew)
