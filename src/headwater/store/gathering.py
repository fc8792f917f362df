"""Features of a dataset that lies at stores, whichever and however many they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwater.engine.fetching import Reader
from headwater.errors import ModelError, WrongUse
from headwater.store.base import Store
from headwater.store.client.features import FeatureReader
from headwater.store.client.remote import RemoteStore
from headwater.store.fleet import ShardedReader, ShardedStore


def feature_reader(
    store: Store,
    trunk: str,
    *,
    width: int,
    steps: Sequence[Mapping[str, Any]] = (),
    seed: int = 0,
    cut: str = "",
) -> Reader:
    """What a run of `engine.inference.Gathering` reads from; the arguments are those of `FeatureReader`.

    Raises `WrongUse` for data that no store serves, `ModelError` where one cannot cut layers.
    """
    if cut:
        check_age(store)
    if isinstance(store, ShardedStore):
        parts = [
            feature_reader(one, trunk, width=width, steps=steps, seed=seed, cut=cut) for one in store.stores
        ]
        return ShardedReader(store, parts, fields=False)
    if isinstance(store, RemoteStore):
        return FeatureReader(store, trunk, width=width, steps=steps, seed=seed, cut=cut)
    raise WrongUse(f"{store.uri} is no store; features of local data are made in this process")


def check_age(store: Store) -> None:
    """Raise `ModelError` for a store that cannot end at a cut: it would pass over it, and send features."""
    if isinstance(store, ShardedStore):
        for one in store.stores:
            check_age(one)
    elif isinstance(store, RemoteStore):
        old = [name for name, welcome in store.known.welcomes.items() if not welcome.cuts]
        if old:
            names = ", ".join(old)
            raise ModelError(f"store {names} is too old to cut layers; upgrade it, or cut at features")
