"""A dataset's index as pages of rows, each with a digest: what a client needs of it, and no more.

Where samples lie in the store's files is not among the columns: a client asks by id. Columns that repeat few
values go as those values, and are encoded anew: Flight's streams of single batches leave dictionaries out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.data.index import FURTHER, Index, content_digest
from headwater.store.wire.payloads import Damaged

ROWS = 50_000
"""Rows of a page, if nobody asks for fewer."""

_HEADER = b"headwater.index"


class IndexHeader(msgspec.Struct, frozen=True):
    """What is said once: with the first page."""

    rows: int
    classes: tuple[str, ...]
    exact_sizes: bool
    encoded: tuple[str, ...] = ()


def index_schema(index: Index, *, first: bool) -> pa.Schema:
    """Columns of the pages; the first page also carries the header."""
    fields = [("id", pa.int64()), ("label", pa.int64()), ("size", pa.int64()), ("key", pa.large_string())]
    encoded = tuple(name for name, column in index.columns.items() if pa.types.is_dictionary(column.type))
    for name, column in index.columns.items():
        fields.append((FURTHER + name, column.type.value_type if name in encoded else column.type))
    header = IndexHeader(len(index), index.classes, index.exact_sizes, encoded)
    return pa.schema(fields, {_HEADER: msgspec.msgpack.encode(header)} if first else None)


def index_page(index: Index, start: int, rows: int, schema: pa.Schema) -> tuple[pa.RecordBatch, bytes]:
    """Rows start..start+rows-1, and their digest."""
    end = min(start + min(rows or ROWS, ROWS), len(index))
    batch = _rows(index, start, max(start, end), schema)
    return batch, _digest(batch, start)


def _rows(index: Index, start: int, end: int, schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array(column[start:end]) for column in (index.ids, index.labels, index.sizes)]
    columns.append(index.keys.slice(start, end - start))
    columns += [_plain(column.slice(start, end - start)) for column in index.columns.values()]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def check_page(batch: pa.RecordBatch, digest: bytes, start: int) -> None:
    """Raises `Damaged` if this is not the page that was sent."""
    try:
        batch.validate(full=True)
        found = _digest(batch, start)
    except (pa.ArrowException, ValueError) as error:  # a name that is no text is a ValueError
        raise Damaged(f"a page of the index cannot be used: {error}") from error
    if found != digest:
        raise Damaged(f"the page of the index from row {start} has a wrong digest")


def read_header(batch: pa.RecordBatch) -> IndexHeader:
    try:
        return msgspec.msgpack.decode(batch.schema.metadata[_HEADER], type=IndexHeader)
    except (KeyError, TypeError, msgspec.MsgspecError) as error:
        raise Damaged(f"the first page of the index says nothing of the rest: {error}") from error


def join_pages(pages: Sequence[pa.RecordBatch], header: IndexHeader) -> Index:
    """The index of the pages. Raises `Damaged` if they are not all there, or are no pages of one index."""
    try:
        return _join(pages, header)
    except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
        raise Damaged(f"the pages of the index do not fit together: {error}") from error


def _join(pages: Sequence[pa.RecordBatch], header: IndexHeader) -> Index:
    table = pa.Table.from_batches([_encode(page, header.encoded) for page in pages]).combine_chunks()
    if len(table) != header.rows:
        raise Damaged(f"{len(table)} rows of an index of {header.rows}")

    def numbers(name: str) -> NDArray[np.int64]:
        return np.ascontiguousarray(table.column(name).to_numpy(), np.int64)

    further = [name for name in table.column_names if name.startswith(FURTHER)]
    return Index.build(
        _whole(table.column("key")),
        numbers("size"),
        labels=numbers("label"),
        classes=header.classes,
        ids=numbers("id"),
        columns={name.removeprefix(FURTHER): _whole(table.column(name)) for name in further},
        exact_sizes=header.exact_sizes,
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """One array; `combine_chunks` would copy even where there is one already."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _encode(page: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Page by page, so that the texts of many rows are never in memory together."""
    page = page.replace_schema_metadata(None)
    for name in names:
        at = page.schema.names.index(FURTHER + name)
        page = page.set_column(at, FURTHER + name, page.column(at).dictionary_encode())
    return page


def blocks_digest(starts: NDArray[np.int64], seal: int) -> bytes:
    """Of the blocks' first positions, and of the request that asked for them."""
    content = seal.to_bytes(8, "little") + np.ascontiguousarray(starts, "<i8").tobytes()
    return hashlib.blake2b(content, digest_size=16).digest()


def content_of(index: Index) -> str:
    """A digest of all that the pages say: rows of all columns, classes, and whether sizes are exact."""
    content = hashlib.blake2b(digest_size=16)
    for start in range(0, max(1, len(index)), ROWS):
        content.update(index_page(index, start, ROWS, index_schema(index, first=not start))[1])
    return content.hexdigest()


def _digest(batch: pa.RecordBatch, start: int) -> bytes:
    plain = {key.decode(): value.hex() for key, value in (batch.schema.metadata or {}).items()}
    return bytes.fromhex(content_digest(batch, {"start": start, **plain}))
