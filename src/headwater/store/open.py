"""`hw.open`: from an address to a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from headwater.data.sources import SourceOptions, open_source
from headwater.errors import WrongUse
from headwater.store.client.address import Secret, is_store
from headwater.store.client.link import Link
from headwater.store.client.opening import open_stores
from headwater.store.dataset import Dataset
from headwater.store.local import LocalStore


def open(
    uri: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    split: str | None = None,
    *,
    image: str | None = None,
    label: str | None = None,
    fields: Sequence[str] = (),
    storage: Mapping[str, str] | None = None,
    refresh: bool = False,
    progress: bool | None = None,
    token: str | os.PathLike[str] | None = None,
    link: Link | None = None,
) -> Dataset:
    """Open an image dataset where it lies; nothing is converted, copied or written beside it.

    `uri` is a folder of images, WebDataset tars (`shards-{000..099}.tar`, a glob, a folder or list of
    them) or Parquet with an image column, on disk or as `s3://bucket/prefix`; or what a store serves, as
    `grpc+tls://host:port/name`. A list of stores is one dataset: the same version makes them replicas,
    disjoint samples shards. `split` is a sub-folder or
    the beginning of Parquet file names. `image` and `label` name the tar extensions or columns to use;
    `fields` name further ones that are handed through with the targets. `storage` holds settings for the
    object store that are not in the environment. The index is cached outside the data and renewed where
    the data changed; `refresh` builds it anew. `progress` shows a bar; None means on a terminal.

    `token` lets in to a store: the token, or the path of a file that holds it (as a `Path`); without it,
    `HEADWATER_TOKEN` or `HEADWATER_TOKEN_FILE` of the environment. `link` holds certificates, deadlines and
    the like.

    Raises `DatasetNotFound`, `DatasetError`, `IdCollision`, `Unreachable`, `Refused` or `WrongUse`.
    """
    stores = _stores(uri)
    if stores:
        settings = {"split": split, "image": image, "label": label, "fields": fields, "storage": storage}
        _refuse_settings({name: value for name, value in settings.items() if value})
        return Dataset(open_stores(stores, Secret(token), link or Link(), progress=progress))
    options = SourceOptions(
        split=split,
        image=image,
        label=label,
        fields=tuple(fields),
        refresh=refresh,
        progress=progress,
        storage=dict(storage or {}),
    )
    return Dataset(LocalStore(open_source(uri, options=options), fields))


def _stores(uri: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """The addresses if they are those of stores; empty if they are those of data."""
    written = [uri] if isinstance(uri, str | os.PathLike) else list(uri)
    stores = [one for one in written if isinstance(one, str) and is_store(one)]
    if stores and len(stores) < len(written):
        raise WrongUse(f"{stores[0]} is a store and others are data; open each kind by itself")
    return stores


def _refuse_settings(given: Mapping[str, object]) -> None:
    if given:
        raise WrongUse(f"{', '.join(sorted(given))}: a store was told this when it was started; leave it out")
