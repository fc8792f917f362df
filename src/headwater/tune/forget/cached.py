"""What the user's own cache folder has of samples: indexes, held samples, features, signals and the like."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.data.index import Index
from headwater.data.indexcache import cache_folder, drop_indexes
from headwater.engine.drawer import INDEX, erase
from headwater.measure.key import records_folder
from headwater.measure.signalfile import drop_tables
from headwater.store.client.index import kept_indexes
from headwater.tune.workplace import drop_workplaces


def find_earlier(index: Index, ids: NDArray[np.int64]) -> tuple[NDArray[np.bool_], set[str]]:
    """Which of these ids the data of a store had when this machine opened them, and versions that had them.

    What was fetched then is an index of these data if they have most of its samples, of the same sizes.
    """
    found, versions = np.zeros(len(ids), np.bool_), set[str]()
    for earlier in kept_indexes():
        there = earlier.has(ids)
        if there.any() and _is_earlier(earlier, index):
            found |= there
            versions.add(earlier.version)
    return found, versions


def _is_earlier(earlier: Index, index: Index) -> bool:
    common = np.flatnonzero(index.has(earlier.ids))
    now = index.sizes[index.position_of(earlier.ids[common])]
    return 2 * int(np.count_nonzero(earlier.sizes[common] == now)) > len(earlier)


def purge_cache(
    ids: NDArray[np.int64], versions: Collection[str], further: Collection[Path] = ()
) -> dict[str, int]:
    """Delete what is kept of samples of datasets of these versions; how much, by what it was.

    `further` are folders of caches, or of signals, that the user has named elsewhere.
    """
    folder = cache_folder()
    drawers = [_erase_all(place, ids) for place in (folder / "samples", folder / "features", *further)]
    tables = [
        drop_tables(place, lambda version: version in versions) for place in (folder / "signals", *further)
    ]
    return {
        "cached indexes": drop_indexes(ids, folder),
        "cached samples and features": sum(drawers),
        "signals": sum(tables),
        "logbooks": _drop_records(versions),
        "unfinished fine-tunings": drop_workplaces(versions),
    }


def _drop_records(versions: Collection[str]) -> int:
    """What training runs have measured, sample by sample, of data of these versions, and plans made of it."""
    names = [version.encode() for version in versions if version]
    found = [path for path in sorted(records_folder().glob("*")) if path.is_file()]
    gone = [path for path in found if any(name in path.read_bytes() for name in names)]
    for path in gone:
        path.unlink(missing_ok=True)
    return len(gone)


def _erase_all(folder: Path, ids: NDArray[np.int64]) -> int:
    """In all drawers below a folder, also while another process has them open."""
    return sum(erase(index.parent, ids) for index in sorted(folder.rglob(INDEX)))
