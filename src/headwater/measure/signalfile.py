"""A table of signals as a file: one Arrow record batch, with a digest that a saved state names it by."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.data.index import Index, content_digest, read_batch
from headwater.errors import StateMismatch
from headwater.measure.signals import COLUMNS, Signals

FORMAT = 1
_HEADER = b"headwater.signals"
_TOUCHED = "touched"


def as_batch(signals: Signals, *, dataset: str) -> tuple[pa.RecordBatch, str]:
    """All columns that there are, and their digest; `dataset` is the version that they belong to.

    Rows that other ranks do not know of yet are marked, so that they learn of them after a resume too.
    """
    signals.column("seen")  # so that there is a row per sample whatever was told
    columns = {name: pa.array(values) for name, values in _flat(signals.columns())}
    if signals.touched is not None:
        columns[_TOUCHED] = pa.array(signals.touched)
    batch = pa.RecordBatch.from_pydict(columns)
    header = {"format": FORMAT, "dataset": dataset, "notes": signals.notes}
    header["content"] = digest = content_digest(batch, header)
    return batch.replace_schema_metadata({_HEADER: msgspec.json.encode(header)}), digest


def _flat(columns: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Several numbers per sample become several columns."""
    for name, values in sorted(columns.items()):
        if values.ndim == 1:
            yield name, values
        else:
            yield from (
                (f"{name}.{part}", np.ascontiguousarray(values[:, part])) for part in range(values.shape[1])
            )


def drop_tables(folder: Path, is_gone: Callable[[str], bool]) -> int:
    """Remove the tables below a folder of data whose version `is_gone`, and what is no table; how many."""
    gone = [path for path in sorted(folder.rglob("*.arrow")) if is_gone(_version_of(path))]
    for path in (*gone, *folder.rglob(".*.arrow.*")):
        path.unlink(missing_ok=True)
    return len(gone)


def _version_of(path: Path) -> str:
    """Empty for what is no table."""
    try:
        header = msgspec.json.decode((read_batch(path).schema.metadata or {})[_HEADER])
        return str(header["dataset"])
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, msgspec.MsgspecError):
        return ""


def read_signals(path: str | os.PathLike[str], index: Index, *, folder: Path | None = None) -> Signals:
    """A saved table; raises `StateMismatch` for one of other data, or that is damaged.

    `folder` is for columns that are large, as `Signals` has it.
    """
    try:
        batch = read_batch(path)
        batch.validate(full=True)
        header = msgspec.json.decode((batch.schema.metadata or {})[_HEADER])
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']}, this version reads {FORMAT}")
        content = header.pop("content")
        if content_digest(batch, header) != content:
            raise ValueError("its digest does not match its content")
        if header["dataset"] != index.version or batch.num_rows != len(index):
            raise ValueError(f"it is of dataset version {header['dataset']}, this is {index.version}")
        return _table(batch, Signals(index, folder=folder), header["notes"])
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, msgspec.MsgspecError) as error:
        raise StateMismatch(
            f"signals file {os.fspath(path)} cannot be used: {error}; bring the file that was saved with the "
            "state, or begin a new run"
        ) from error


def _table(batch: pa.RecordBatch, found: Signals, notes: Mapping[str, Any]) -> Signals:
    found.notes = dict(notes)
    if _TOUCHED in batch.schema.names:
        found.touched = batch.column(_TOUCHED).to_numpy(zero_copy_only=False).astype(np.bool_)
        batch = batch.drop_columns([_TOUCHED])
    names = [name.partition(".") for name in batch.schema.names]
    for name in dict.fromkeys(whole for whole, _, _ in names):
        if name not in COLUMNS:
            raise ValueError(f"it has a column {name!r}")
        parts = [batch.column(place).to_numpy() for place, each in enumerate(names) if each[0] == name]
        if COLUMNS[name].width == 1:
            found.column(name)[:] = parts[0]
        else:
            found.column(name, width=len(parts))[:] = np.stack(parts, axis=1)
    return found
