"""What a job has selected as pages of rows, each with a digest: ids with a number each.

Of a job that is to tell what tells samples apart, such as fingerprints, these bytes are a column too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.store.wire.payloads import Damaged

SELECTION = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("weight", pa.float32(), nullable=False)]
)
"""Columns of what was selected; of what tells samples apart also `row`, the bytes of each."""
SELECTION_ROWS = 1 << 16
"""Rows of a page of it, if nobody asks for fewer."""
SELECTION_BYTES = 1 << 22
"""Of a page with such bytes; it has fewer rows then."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """Rows of a selection: ids, a number each, and the bytes that tell each apart, mostly none."""

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    rows: NDArray[np.uint8]

    @property
    def schema(self) -> pa.Schema:
        return selection_schema(self.rows.shape[1])

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.weights.nbytes + self.rows.nbytes

    def part(self, start: int, rows: int) -> Chosen:
        """Rows start..start+rows-1, or as many as a page has."""
        most = most_rows(self.rows.shape[1])
        some = slice(start, start + min(rows or most, most))
        return Chosen(self.ids[some], self.weights[some], self.rows[some])

    def batch(self) -> pa.RecordBatch:
        columns = [pa.array(self.ids, pa.int64()), pa.array(self.weights, pa.float32())]
        if width := self.rows.shape[1]:
            held = pa.py_buffer(np.ascontiguousarray(self.rows))
            columns.append(
                pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(self.ids), [None, held])
            )
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Chosen:
        """Of a batch that is valid; raises `ValueError` for other columns."""
        width = batch.schema.field("row").type.byte_width if "row" in batch.schema.names else 0
        if batch.schema.remove_metadata() != selection_schema(width):
            raise ValueError(f"columns {batch.schema.names}")
        ids, weights = (batch.column(name).to_numpy(zero_copy_only=True) for name in SELECTION.names)
        rows = np.empty((len(ids), 0), np.uint8)
        if width:
            held = batch.column("row")
            if held.null_count:
                raise ValueError("rows of nothing")
            whole = np.frombuffer(held.buffers()[1], np.uint8, count=width * (held.offset + len(ids)))
            rows = whole.reshape(-1, width)[held.offset :]
        return cls(ids, weights, rows)

    def digest(self, before: bytes = b"") -> str:
        """BLAKE2b-128 of all ids, then all weights, then all bytes, little-endian."""
        state = hashlib.blake2b(before, digest_size=16)
        state.update(np.ascontiguousarray(self.ids, "<i8").data)
        state.update(np.ascontiguousarray(self.weights, "<f4").data)
        state.update(np.ascontiguousarray(self.rows).data)
        return state.hexdigest()


def join(parts: Sequence[Chosen]) -> Chosen:
    """One after the other, all with as many bytes of each."""
    if not parts:
        return Chosen(np.empty(0, np.int64), np.empty(0, np.float32), np.empty((0, 0), np.uint8))
    columns = zip(*((part.ids, part.weights, part.rows) for part in parts), strict=True)
    return Chosen(*(np.concatenate(column) for column in columns))


def selection_schema(width: int) -> pa.Schema:
    """The columns, with so many bytes of what tells a sample apart."""
    return SELECTION.append(pa.field("row", pa.binary(width), nullable=False)) if width else SELECTION


def most_rows(width: int) -> int:
    """Rows of a page, if nobody asks for fewer."""
    return max(1, min(SELECTION_ROWS, SELECTION_BYTES // width)) if width else SELECTION_ROWS


def selection_page(chosen: Chosen, start: int, rows: int, *, seal: int) -> tuple[pa.RecordBatch, bytes]:
    """Rows start..start+rows-1 of a selection, and the digest of them and of the request."""
    part = chosen.part(start, rows)
    return part.batch(), _sealed(part, seal)


def read_selection(batch: pa.RecordBatch, digest: bytes, *, seal: int) -> Chosen:
    """A page; raises `Damaged` if it is not what was asked for, as it was sent."""
    try:
        batch.validate(full=True)
        found = Chosen.of(batch)
    except (pa.ArrowException, ValueError, AttributeError) as error:  # a row of a type without a width
        raise Damaged(f"a page of a selection cannot be used: {error}") from error
    if _sealed(found, seal) != digest:
        raise Damaged("a page of a selection has a wrong digest")
    return found


def _sealed(part: Chosen, seal: int) -> bytes:
    return bytes.fromhex(part.digest(seal.to_bytes(8, "little")))
