"""Parquet: the columns of the CSV, typed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.data.index import sample_ids
from headwater.errors import LabelFileInvalid
from headwater.store.labels.exchange.sheet import SCHEMA, Pictures, Place, Sheet

_ROWS_AT_ONCE = 50_000
_TIME = pa.timestamp("ms", tz="UTC")
_KEY = pa.field("key", pa.string())
_NAME = pa.dictionary(pa.int32(), pa.string())
_FILE = pa.schema(
    [
        *(SCHEMA.field(name) for name in ("sample",)),
        _KEY,
        pa.field("label", _NAME),
        *(SCHEMA.field(name) for name in ("score", "margin")),
        pa.field("source", _NAME),
        pa.field("model", _NAME),
        pa.field("time", _TIME),
    ]
)


def write(file: BinaryIO, sheets: Iterable[Sheet], pictures: Pictures) -> int:
    """All rows in force; how many."""
    schema = _FILE if pictures.keys is not None else _FILE.remove(1)
    count = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for sheet in sheets:
            keys = pa.array(pictures.of(sheet.table["sample"].to_numpy()), pa.string())
            columns = {**{name: sheet.table[name] for name in SCHEMA.names}, "key": keys}
            arrays = [columns[field.name].cast(field.type) for field in schema]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            count += len(sheet)
    return count


def read(path: Path) -> Iterator[Sheet]:
    """The rows; raises `LabelFileInvalid` with the row and column of what is wrong."""
    if not path.is_file():
        raise FileNotFoundError(2, "no such file", str(path))
    try:
        with pq.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow.names)
            start = 0
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                yield _sheet(path, batch, start)
                start += len(batch)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise LabelFileInvalid(f"{path.name} cannot be read as Parquet: {reason}") from error


def _check_columns(path: Path, names: list[str]) -> None:
    known = ", ".join(_FILE.names)
    for name in names:
        if name not in _FILE.names:
            raise LabelFileInvalid(f"{path.name}: no column is called {name!r}; known: {known}")
    if "label" not in names or not {"sample", "key"} & set(names):
        raise LabelFileInvalid(f"{path.name}: columns `label`, and `sample` or `key`, are needed")


def _sheet(path: Path, batch: pa.RecordBatch, start: int) -> Sheet:
    def place(row: int, column: str) -> str:
        return f"{path.name} row {start + row + 1}, column {column!r}"

    there = {name: _cast(path, name, batch[name]) for name in batch.schema.names}
    there.setdefault("source", pa.array(["import"] * len(batch)))
    for field in SCHEMA:
        there.setdefault(field.name, pa.nulls(len(batch), field.type))
    if "key" in there:
        there["sample"] = _samples(there["sample"], there["key"], place)
    columns = [there[name] for name in SCHEMA.names]
    return Sheet(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), place=place).check()


def _samples(samples: Any, keys: Any, place: Place) -> Any:
    """The ids, from the keys where none is given; raises `LabelFileInvalid` where the two differ."""
    hashed = pa.array(sample_ids(keys.fill_null("")), mask=keys.is_null().to_numpy(zero_copy_only=False))
    wrong = pc.index(pc.not_equal(samples, hashed), True).as_py()
    if wrong >= 0:
        raise LabelFileInvalid(f"{place(wrong, 'key')}: its id is {hashed[wrong]}, not {samples[wrong]}")
    return pc.coalesce(samples, hashed)


def _cast(path: Path, name: str, column: Any) -> Any:
    wanted = _KEY.type if name == "key" else SCHEMA.field(name).type
    try:
        if name == "time":
            column = column.cast(_TIME)
        return column.cast(wanted)
    except pa.ArrowException as error:
        raise LabelFileInvalid(
            f"{path.name}, column {name!r}: holds {column.type}, which is no {wanted} ({error})"
        ) from error
