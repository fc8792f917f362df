"""Features of a dataset that lies at stores, whichever and however many they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwater.engine.fetching import Reader
from headwater.errors import WrongUse
from headwater.store.base import Store
from headwater.store.client.features import FeatureReader
from headwater.store.client.remote import RemoteStore
from headwater.store.fleet import ShardedReader, ShardedStore


def feature_reader(
    store: Store, trunk: str, *, width: int, steps: Sequence[Mapping[str, Any]] = (), seed: int = 0
) -> Reader:
    """What a run of `engine.inference.Gathering` reads from; the arguments are those of `FeatureReader`.

    Raises `WrongUse` for data that no store serves.
    """
    if isinstance(store, ShardedStore):
        parts = [feature_reader(one, trunk, width=width, steps=steps, seed=seed) for one in store.stores]
        return ShardedReader(store, parts, fields=False)
    if isinstance(store, RemoteStore):
        return FeatureReader(store, trunk, width=width, steps=steps, seed=seed)
    raise WrongUse(f"{store.uri} is no store; features of local data are made in this process")
