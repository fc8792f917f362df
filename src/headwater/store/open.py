"""`hw.open`: from an address to a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from headwater.data.sources import SourceOptions, open_source
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
) -> Dataset:
    """Open an image dataset where it lies; nothing is converted, copied or written beside it.

    `uri` is a folder of images, WebDataset tars (`shards-{000..099}.tar`, a glob, a folder or list of
    them) or Parquet with an image column, on disk or as `s3://bucket/prefix`. `split` is a sub-folder or
    the beginning of Parquet file names. `image` and `label` name the tar extensions or columns to use;
    `fields` name further ones that are handed through with the targets. `storage` holds settings for the
    object store that are not in the environment. The index is cached outside the data and renewed where
    the data changed; `refresh` builds it anew. `progress` shows a bar; None means on a terminal.

    Raises `DatasetNotFound`, `DatasetError`, `IdCollision`, `Unreachable` or `WrongUse`.
    """
    options = SourceOptions(
        split=split,
        image=image,
        label=label,
        fields=tuple(fields),
        refresh=refresh,
        progress=progress,
        storage=dict(storage or {}),
    )
    return Dataset(LocalStore(open_source(uri, options=options)))
