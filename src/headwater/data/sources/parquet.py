"""Parquet with Hugging Face's image schema: row groups are read whole, kept, and sliced without copies."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headwater.data.files import Buffer, Files, Fingerprint, Span, stale
from headwater.data.index import Index
from headwater.data.indexing import open_index
from headwater.data.scans import Scan, Unit, make_rows
from headwater.data.sources.addresses import Address
from headwater.data.sources.base import Positions, SourceOptions
from headwater.data.sources.imageschema import ImageSchema
from headwater.data.sources.rowgroups import GroupCache
from headwater.data.sources.tar import ShardNames
from headwater.errors import DatasetError, DatasetNotFound, SampleCorrupt, WrongUse

CACHED_BYTES = 512 << 20
CHEAP_BYTES = 16
"""A text column that takes more bytes per row than this in its file is not kept in the index."""

_ROW_BITS = 32
_CHUNK_BYTES = 512  # headers and a small dictionary, whatever the number of rows

_Chunk = tuple[NDArray[np.uint8], NDArray[Any], NDArray[np.bool_]]  # bytes, bounds, absent


class ParquetSource:
    """Samples that are rows; the key is the file's stem and the row's number."""

    def __init__(self, address: Address, options: SourceOptions, *, cached_bytes: int = CACHED_BYTES) -> None:
        self.uri = address.uri
        self.remote = address.files.remote
        self.cached_bytes: int | None = cached_bytes
        self._files = address.files
        self._options = options
        self._paths = address.listing.column("path").to_pylist()
        self._sizes = address.listing.column("size").to_pylist()
        self._footers: GroupCache[_Footer] = GroupCache(cached_bytes // 8)
        self._groups: GroupCache[_Images] = GroupCache(cached_bytes)
        self._tables: GroupCache[pa.Table] = GroupCache(cached_bytes // 8)
        layout = ParquetLayout(address, options)
        self.index: Index = open_index(
            layout, refresh=options.refresh, progress=options.progress, forgotten=options.forgotten
        )
        if not len(self.index):
            raise DatasetNotFound(f"no rows in {address.uri}")

    def read(self, positions: Positions) -> list[Buffer]:
        out: list[Buffer] = [b""] * len(positions)
        for shard, group, places, rows in self._by_group(positions):
            images = self._groups.get((shard, group), partial(self._load_images, shard, group))
            for place, data in zip(places.tolist(), images.take(rows), strict=True):
                out[place] = data
        return out

    def read_heads(self, positions: Positions, length: int) -> list[Buffer]:
        return [data[:length] for data in self.read(positions)]

    def read_fields(self, positions: Positions) -> dict[str, list[object]]:
        fields = self._options.fields
        out: dict[str, list[object]] = {name: [None] * len(positions) for name in fields}
        for shard, group, places, rows in self._by_group(positions) if fields else ():
            table = self._tables.get((shard, group), partial(self._load_fields, shard, group))
            for name, column in table.take(rows).to_pydict().items():
                for place, value in zip(places.tolist(), column, strict=True):
                    out[name][place] = value
        return out

    def blocks(self) -> Positions:
        """Positions at which row groups begin."""
        group, shard = self.index.offset >> _ROW_BITS, self.index.shard
        changes = (group[1:] != group[:-1]) | (shard[1:] != shard[:-1])
        return np.concatenate([[0], np.flatnonzero(changes) + 1]).astype(np.int64)

    def check_deletable(self, keys: Sequence[str]) -> None:
        raise WrongUse(
            f"a sample of {self.uri} is a row of a Parquet file, which is not deleted in place; forget "
            "without deleting files, and write the file anew without it"
        )

    def delete(self, keys: Sequence[str]) -> int:
        self.check_deletable(keys)
        return 0

    def close(self) -> None:
        for cache in (self._groups, self._tables, self._footers):
            cache.clear()
        self._files.close()

    def _by_group(self, positions: Positions) -> list[tuple[int, int, Positions, Positions]]:
        """(shard, row group, places in `positions`, rows in the group), each row group once."""
        shard, offset = self.index.shard[positions], self.index.offset[positions]
        group, row = offset >> _ROW_BITS, offset & ((1 << _ROW_BITS) - 1)
        order = np.lexsort((group, shard))
        changes = (np.diff(shard[order]) != 0) | (np.diff(group[order]) != 0)
        runs = np.split(order, np.flatnonzero(changes) + 1) if len(order) else []
        return [(int(shard[run[0]]), int(group[run[0]]), run, row[run]) for run in runs]

    def _footer(self, shard: int) -> _Footer:
        def load() -> _Footer:
            self._refuse_changed(shard)
            try:
                with _open(self._files, self._paths[shard], self._sizes[shard]) as file:
                    return _Footer(file.metadata, ImageSchema.of(file.schema_arrow, self._options))
            except (pa.ArrowException, OSError) as error:
                raise SampleCorrupt(f"footer of {self._paths[shard]} cannot be read: {error}") from error

        return self._footers.get(shard, load)

    def _load_images(self, shard: int, group: int) -> _Images:
        footer = self._footer(shard)
        table = self._read_group(shard, group, columns=[footer.schema.image_leaf])
        return _Images.of(table.column(footer.schema.image), f"row group {group} of {self._paths[shard]}")

    def _load_fields(self, shard: int, group: int) -> pa.Table:
        return self._read_group(shard, group, columns=list(self._options.fields)).select(self._options.fields)

    def _read_group(self, shard: int, group: int, *, columns: list[str]) -> pa.Table:
        self._refuse_changed(shard)
        path, footer = self._paths[shard], self._footer(shard)
        try:
            with _open(self._files, path, self._sizes[shard], metadata=footer.metadata) as file:
                return file.read_row_group(group, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise SampleCorrupt(f"row group {group} of {path} cannot be read: {error}") from error

    def _refuse_changed(self, shard: int) -> None:
        path, size = self._paths[shard], self._sizes[shard]
        try:
            now: Fingerprint | None = self._files.fingerprint(path)
        except DatasetNotFound:
            now = None
        if now is None or now.size != size:
            raise stale(Span(path, 0, 0, size), None if now is None else now.size)


@dataclass(frozen=True, eq=False)
class _Footer:
    metadata: pq.FileMetaData
    schema: ImageSchema

    @property
    def nbytes(self) -> int:
        return int(self.metadata.serialized_size)


class _Images:
    """The image column of one row group: bytes and bounds of each chunk, never copied again."""

    def __init__(self, chunks: Sequence[_Chunk], where: str) -> None:
        self._chunks = chunks
        self._starts = np.cumsum([0] + [len(bounds) - 1 for _, bounds, _ in chunks])
        self._where = where
        self.nbytes = sum(data.nbytes + bounds.nbytes for data, bounds, _ in chunks)

    @classmethod
    def of(cls, column: pa.ChunkedArray, where: str) -> _Images:
        return cls([_chunk(chunk) for chunk in column.chunks if len(chunk)], where)

    def take(self, rows: Positions) -> list[NDArray[np.uint8]]:
        """Views of the bytes of these rows."""
        if len(self._chunks) == 1:
            return self._take_from(0, rows)
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        return [self._take_from(number, rows[k : k + 1])[0] for k, number in enumerate(numbers.tolist())]

    def _take_from(self, number: int, rows: Positions) -> list[NDArray[np.uint8]]:
        data, bounds, absent = self._chunks[number]
        places = rows - self._starts[number]
        if absent[places].any():
            row = rows[absent[places]][0]
            raise SampleCorrupt(f"row {row} in {self._where} has no image bytes; paths are not followed")
        begins, ends = bounds[places].tolist(), bounds[places + 1].tolist()
        return [data[begin:end] for begin, end in zip(begins, ends, strict=True)]


def _chunk(array: pa.Array) -> _Chunk:
    if pa.types.is_struct(array.type):
        array = pc.struct_field(array, "bytes")
    if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
        array = array.cast(pa.large_binary())
    kind = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    _, bounds, data = array.buffers()
    numbers = np.frombuffer(bounds, kind, count=len(array) + 1, offset=array.offset * np.dtype(kind).itemsize)
    content = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    content.flags.writeable = False  # slices are shared by everyone who reads this row group
    return content, numbers, array.is_null().to_numpy(zero_copy_only=False)


class ParquetLayout:
    """Parquet files of one dataset: a unit each; keys and labels come from footers and small columns."""

    numeric_labels = True
    exact_sizes = False
    batch = 1

    def __init__(self, address: Address, options: SourceOptions) -> None:
        self.identity = msgspec.json.encode(["parquet", address.uri, options.shape()]).decode()
        self.workers = 8 if address.files.remote else 2
        self._options = options
        self._files = address.files
        self._shards = ShardNames(address)

    def units(self, known: Mapping[str, str]) -> list[Unit]:
        return self._shards.units()

    def scan(self, units: Sequence[Unit]) -> Scan:
        (unit,) = units
        path, size = self._shards.place(unit.name)
        try:
            with _open(self._files, path, size) as file:
                schema = ImageSchema.of(file.schema_arrow, self._options)
                return Scan((unit,), self._rows(file, schema, self._shards.prefix(unit.name)), schema.classes)
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(f"{path} cannot be read as Parquet: {error}; write the file again") from error

    def _rows(self, file: pq.ParquetFile, schema: ImageSchema, prefix: str) -> pa.Table:
        footer = file.metadata
        counts = np.array([footer.row_group(g).num_rows for g in range(footer.num_row_groups)], np.int64)
        groups = np.repeat(np.arange(len(counts)), counts)
        numbers = np.arange(footer.num_rows)
        rows = numbers - np.repeat(np.cumsum(counts) - counts, counts)
        small = [name for name in schema.scalars if _is_cheap(footer, name, schema)]
        wanted = list(dict.fromkeys([*small, *([schema.label] if schema.label else [])]))
        table = file.read(columns=wanted).combine_chunks() if wanted else None
        labels = pa.nulls(footer.num_rows, pa.large_string())
        if table is not None and schema.label:
            labels = _as_label(table.column(schema.label), schema.label)
        keys = pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "/")
        return make_rows(
            keys,
            np.repeat(_mean_sizes(footer, schema.image_leaf), counts),
            unit=np.zeros(footer.num_rows, np.int32),
            labels=labels,
            offsets=(groups << _ROW_BITS) | rows,
            columns={name: table.column(name) for name in small} if table is not None else None,
        )


def _mean_sizes(footer: pq.FileMetaData, leaf: str) -> NDArray[np.int64]:
    """Mean bytes of an image in each row group: exact lengths would mean reading every image."""
    means = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        total = sum(c.total_uncompressed_size for c in _chunks_of(group) if c.path_in_schema == leaf)
        means.append(total // max(group.num_rows, 1))
    return np.array(means, np.int64)


def _chunks_of(group: pq.RowGroupMetaData) -> list[pq.ColumnChunkMetaData]:
    return [group.column(number) for number in range(group.num_columns)]


def _is_cheap(footer: pq.FileMetaData, name: str, schema: ImageSchema) -> bool:
    if schema.is_fixed_width(name):
        return True
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    total = sum(c.total_uncompressed_size for g in groups for c in _chunks_of(g) if c.path_in_schema == name)
    return bool(total <= CHEAP_BYTES * footer.num_rows + _CHUNK_BYTES * footer.num_row_groups)


def _as_label(column: pa.ChunkedArray, name: str) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type):
        return column.combine_chunks().cast(pa.int64())
    if pa.types.is_boolean(column.type):
        return column.combine_chunks().cast(pa.int8()).cast(pa.int64())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.combine_chunks().cast(pa.large_string())
    raise DatasetError(f"label column {name!r} is {column.type}; labels are integers, booleans or strings")


def _open(files: Files, path: str, size: int, *, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    if not files.remote:
        return pq.ParquetFile(path, metadata=metadata, memory_map=False)
    return pq.ParquetFile(_RangedFile(files, path, size), metadata=metadata, pre_buffer=True)


class _RangedFile(io.RawIOBase):
    """An object as the seekable file that pyarrow wants; every read is one ranged request."""

    def __init__(self, files: Files, path: str, size: int) -> None:
        super().__init__()
        self._files, self._path, self._size = files, path, size
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def read(self, length: int = -1) -> bytes:
        left = max(self._size - self._place, 0)
        wanted = left if length is None or length < 0 else min(length, left)
        data = bytes(self._files.read_range(self._path, self._place, wanted)) if wanted else b""
        self._place += len(data)
        return data
