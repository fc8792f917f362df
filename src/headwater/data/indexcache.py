"""Where built indexes are kept: a private folder of the user, never beside the data."""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.data.index import FORMAT, Index, read_batch, write_batch
from headwater.data.scans import Scan, Unit, joined
from headwater.errors import DatasetError

log = logging.getLogger("headwater")

_PART = b"headwater.part"


def cache_folder() -> Path:
    """`$HEADWATER_CACHE`, else `$XDG_CACHE_HOME/headwater`, else `~/.cache/headwater`."""
    chosen = os.environ.get("HEADWATER_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headwater"


class IndexCache:
    """The cached index of one dataset and the parts of an interrupted build.

    Files appear by renaming, so processes that index the same data at once do not disturb each
    other: the last one wins with an equal result. A folder that cannot be written to costs a
    warning; the index then lives in memory.
    """

    def __init__(self, name: str) -> None:
        folder = cache_folder()
        self._index = folder / f"{name}.arrow"
        self._parts = folder / f"{name}.parts"

    def load(self) -> Index | None:
        """The cached index, or None if there is none that can be used."""
        if not self._index.exists():
            return None
        try:
            index = Index.load(self._index)
            if len(index.notes["fingerprints"]) == len(index.places.shards):
                return index
            raise DatasetError(f"index file {self._index} lacks fingerprints")
        except (DatasetError, KeyError, TypeError) as error:
            log.warning("%s; indexing again", error)
            return None

    def save(self, index: Index) -> None:
        """Keep a finished index and drop the parts that it was made of."""
        try:
            self._index.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            index.save(self._index)
        except OSError as error:
            place = self._index.parent
            log.warning("cannot keep the index in %s (%s); set HEADWATER_CACHE", place, error.strerror)
            return
        shutil.rmtree(self._parts, ignore_errors=True)

    def load_parts(self) -> list[Scan]:
        """What an interrupted build had finished."""
        scans = []
        for path in sorted(self._parts.glob("*.arrow")) if self._parts.exists() else []:
            try:
                scans.append(_read_part(path))
            except (OSError, ValueError, KeyError, pa.ArrowException, msgspec.MsgspecError) as error:
                log.warning("part %s of an earlier build cannot be used: %s", path, error)
        return scans

    def save_part(self, scans: Sequence[Scan]) -> None:
        """Keep finished scans until the index is complete."""
        if not scans:
            return
        try:
            self._parts.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._parts.mkdir(exist_ok=True)
            _write_part(self._parts / f"{uuid.uuid4().hex}.arrow", joined(scans))
        except OSError as error:
            # Another process may just have finished and removed the folder; a part is only ever a saving.
            log.info("cannot keep a part of the index in %s: %s", self._parts, error.strerror)


def drop_indexes(ids: NDArray[np.int64], folder: Path) -> int:
    """Remove all cached indexes below a folder, and parts of them, that have one of these ids; how many.

    Each is made anew, or fetched, when it is next needed. Indexes in use stay so: they are mapped. What
    cannot be read goes, too.
    """
    found = [*folder.glob("*.arrow"), *folder.glob("*.parts/*.arrow")] if folder.is_dir() else []
    drafts = [*folder.glob(".*.arrow.*"), *folder.glob("*.parts/.*.arrow.*")] if folder.is_dir() else []
    wanted = [path for path in found if _has_any(path, ids)]
    for path in (*wanted, *drafts):
        path.unlink(missing_ok=True)
    return len(wanted)


def _has_any(path: Path, ids: NDArray[np.int64]) -> bool:
    try:
        return bool(np.isin(ids, read_batch(path).column("id").to_numpy()).any())
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, pa.ArrowException):
        return True


def _write_part(path: Path, scan: Scan) -> None:
    header = {"format": FORMAT, "units": scan.units, "classes": scan.classes}
    rows = scan.rows.combine_chunks().replace_schema_metadata({_PART: msgspec.json.encode(header)})
    batches = rows.to_batches()
    write_batch(path, batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema))


def _read_part(path: Path) -> Scan:
    batch = read_batch(path)
    batch.validate(full=True)
    header = msgspec.json.decode(batch.schema.metadata[_PART])
    if header.get("format") != FORMAT:
        raise ValueError(f"format {header.get('format')}, this version reads {FORMAT}")
    units = tuple(Unit(*pair) for pair in header["units"])
    return Scan(units, pa.Table.from_batches([batch]), tuple(header["classes"]))
