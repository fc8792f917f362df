"""Sources: samples of image folders, tars and Parquet files, on disk or in a bucket, read in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headwater.data.forgotten import Forgotten, forgotten_folder
from headwater.data.sources.addresses import Address, locate
from headwater.data.sources.base import Positions, Source, SourceOptions
from headwater.data.sources.folder import FolderSource
from headwater.data.sources.parquet import ParquetSource
from headwater.data.sources.tar import TarSource

LAYOUTS: Mapping[str, Callable[[Address, SourceOptions], Source]] = {
    "folder": FolderSource,
    "tar": TarSource,
    "parquet": ParquetSource,
}


def open_source(
    uri: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, options: SourceOptions | None = None
) -> Source:
    """The dataset at `uri`, indexed.

    A path, `s3://bucket/prefix`, a pattern (`shards-{000..099}.tar`, `*.parquet`) or a list of
    shards. Raises `DatasetNotFound`, `DatasetError`, `Unreachable`, `WrongUse`.
    """
    chosen = options or SourceOptions()
    address = locate(uri, chosen)
    if chosen.forgotten is None:
        chosen = replace(chosen, forgotten=Forgotten(forgotten_folder(), address.place))
    return LAYOUTS[address.layout](address, chosen)


__all__ = ["LAYOUTS", "Positions", "Source", "SourceOptions", "open_source"]
