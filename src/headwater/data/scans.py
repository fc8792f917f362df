"""Scans: the rows that were found in some units of a dataset, and how they become one index."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headwater.data.index import FURTHER, Index, Places, sample_ids
from headwater.errors import DatasetError

CORE = ("unit", "id", "key", "label", "size", "offset")
"""Columns of every scan: `unit` is a number in its `units`; `label` is int64 or a string, null if absent.

Columns of the data itself have `FURTHER` before their names: a user's `id` or `size` is not ours.
"""


class Unit(NamedTuple):
    """A folder or a shard; an empty fingerprint means that it must be scanned again next time."""

    name: str
    fingerprint: str


@dataclass(frozen=True, eq=False)
class Scan:
    """Rows of some units; `classes` are names that the data itself gives to integer labels."""

    units: tuple[Unit, ...]
    rows: pa.Table
    classes: tuple[str, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_index(cls, index: Index) -> Scan:
        """The scan that an index was assembled from."""
        units = tuple(map(Unit, index.places.shards, index.notes["fingerprints"]))
        fixed = index.notes["labels"] == "fixed"
        core = (index.shard, index.ids, index.keys, _written_labels(index), index.sizes, index.offset)
        columns = {name: pa.array(column) for name, column in zip(CORE, core, strict=True)}
        columns |= {FURTHER + name: _decoded(column) for name, column in index.columns.items()}
        return cls(units, pa.table(columns), index.classes if fixed else ())


def make_rows(
    keys: pa.Array | Sequence[str],
    sizes: NDArray[np.int64] | Sequence[int],
    *,
    unit: NDArray[np.int32],
    labels: pa.Array,
    offsets: NDArray[np.int64],
    columns: Mapping[str, pa.Array] | None = None,
) -> pa.Table:
    """The rows of a scan, with ids hashed from the keys."""
    names = pa.array(keys, pa.large_string()) if not isinstance(keys, pa.Array) else keys
    lengths = np.asarray(sizes, np.int64)
    core = (unit, sample_ids(names), names.cast(pa.large_string()), labels, lengths, offsets)
    further = {FURTHER + name: column for name, column in (columns or {}).items()}
    return pa.table(dict(zip(CORE, map(pa.array, core), strict=True)) | further)


def kept(scan: Scan, wanted: AbstractSet[Unit]) -> Scan:
    """The part of a scan that is about wanted units."""
    keep = np.array([unit in wanted for unit in scan.units], dtype=bool)
    if keep.all():
        return scan
    numbers = np.cumsum(keep, dtype=np.int32) - np.int32(1)
    unit = scan.rows.column("unit").to_numpy()
    rows = scan.rows.filter(pa.array(keep[unit])).drop_columns(["unit"])
    rows = rows.add_column(0, "unit", pa.array(numbers[unit[keep[unit]]]))
    units = tuple(unit for unit, stays in zip(scan.units, keep, strict=True) if stays)
    return dataclasses.replace(scan, units=units, rows=rows)


def joined(scans: Sequence[Scan]) -> Scan:
    """Several scans as one; columns that not all of them have are dropped."""
    shared = [name for name in scans[0].rows.column_names if all(name in s.rows.column_names for s in scans)]
    mixed = len({scan.rows.schema.field("label").type for scan in scans}) > 1
    tables: list[pa.Table] = []
    units: list[Unit] = []
    for scan in scans:
        table = scan.rows.select(shared)
        shifted = pc.add(table.column("unit"), pa.scalar(len(units), pa.int32()))
        table = table.set_column(0, "unit", shifted)
        tables.append(_with_text_labels(table) if mixed else table)
        units += scan.units
    try:
        rows = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DatasetError(f"the dataset's files do not have the same columns: {error}") from error
    return Scan(tuple(units), rows, _shared_classes(scans))


def assemble(
    scans: Sequence[Scan], units: Sequence[Unit], *, numeric_labels: bool, exact_sizes: bool
) -> Index:
    """One index of all units, rows in the order of `units`, which must be sorted by name."""
    if not scans:
        return _empty()
    scan = joined(scans)
    number = {unit.name: position for position, unit in enumerate(units)}
    places = np.array([number[unit.name] for unit in scan.units], dtype=np.int32)
    shard = places[scan.rows.column("unit").to_numpy()]
    rows = scan.rows
    if np.any(shard[1:] < shard[:-1]):
        order = np.argsort(shard, kind="stable")
        rows, shard = rows.take(order), shard[order]
    labels, classes, kind = _labels(rows.column("label"), scan.classes, numeric=numeric_labels)
    further = [name for name in rows.column_names if name.startswith(FURTHER)]
    index = Index.build(
        rows.column("key").combine_chunks(),
        rows.column("size").to_numpy(),
        labels=labels,
        classes=classes,
        ids=rows.column("id").to_numpy(),
        places=Places(tuple(unit.name for unit in units), shard, rows.column("offset").to_numpy()),
        columns={name.removeprefix(FURTHER): _encoded(rows.column(name)) for name in further},
        exact_sizes=exact_sizes,
    )
    texts = _lost_texts(rows.column("label")) if kind == "numbers" else None
    notes = {"fingerprints": [unit.fingerprint for unit in units], "labels": kind}
    return dataclasses.replace(index, label_texts=texts, notes=notes)


def _empty() -> Index:
    none = np.empty(0, np.int64)
    index = Index.build([], none, places=Places((), none.astype(np.int32), none))
    return dataclasses.replace(index, notes={"fingerprints": [], "labels": "numbers"})


def _labels(
    column: pa.ChunkedArray, fixed: tuple[str, ...], *, numeric: bool
) -> tuple[NDArray[np.int64], tuple[str, ...], str]:
    """Labels as integers, the names of the classes, and how the two were found."""
    if pa.types.is_integer(column.type):
        return _filled(column), fixed, "fixed" if fixed else "numbers"
    if pa.types.is_null(column.type):
        return np.full(len(column), -1, np.int64), (), "numbers"
    encoded = column.combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if numeric and names and all(_is_integer(name) for name in names):
        classes: tuple[str, ...] = ()
        values = np.array([int(name) for name in names], np.int64)
    else:
        classes = tuple(sorted(names))
        rank = {name: position for position, name in enumerate(classes)}
        values = np.array([rank[name] for name in names], np.int64)
    # A missing label has code -1, which picks the appended -1.
    return np.append(values, -1)[_filled(encoded.indices)], classes, "names" if classes else "numbers"


def _written_labels(index: Index) -> pa.Array:
    """Labels as the data has them: numbers, or the texts that numbers or places in `classes` stand for."""
    if index.label_texts is not None:
        return _decoded(index.label_texts)
    labels = pa.array(index.labels, mask=index.labels == -1)
    if index.classes and index.notes["labels"] != "fixed":
        return pa.array(index.classes, pa.large_string()).take(labels)
    return labels


def _lost_texts(column: pa.ChunkedArray) -> pa.Array | None:
    """The labels' texts if their numbers do not give them back ("09"); a name may still join them."""
    if pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        return None
    encoded = column.combine_chunks().dictionary_encode()
    plain = all(str(int(text)) == text != "-1" for text in encoded.dictionary.to_pylist())
    return None if plain else encoded


def _filled(column: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    whole: NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), -1).to_numpy()
    return whole


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 19


def _with_text_labels(table: pa.Table) -> pa.Table:
    place = table.schema.get_field_index("label")
    return table.set_column(place, "label", table.column("label").cast(pa.large_string()))


def _shared_classes(scans: Sequence[Scan]) -> tuple[str, ...]:
    named = {scan.classes for scan in scans if scan.rows.num_rows}
    if len(named) > 1:
        first, second = sorted(named)[:2]
        raise DatasetError(f"the dataset's files name different classes: {first[:5]} and {second[:5]}")
    return named.pop() if named else ()


def _encoded(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    text = pa.types.is_string(whole.type) or pa.types.is_large_string(whole.type)
    return whole.dictionary_encode() if text else whole


def _decoded(column: pa.Array) -> pa.Array:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
