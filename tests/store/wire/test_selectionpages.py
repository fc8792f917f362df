"""What was selected crosses the wire in pages and comes out the same, or the receiver notices."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headwater.store.wire import selectionpages
from headwater.store.wire.payloads import Damaged
from headwater.store.wire.selectionpages import Chosen, join, read_selection, selection_page

SEAL = (1 << 64) - 5


def make(count: int = 50, width: int = 0) -> Chosen:
    rng = np.random.default_rng(count + width)
    rows = rng.integers(0, 256, (count, width)).astype(np.uint8)
    return Chosen(rng.integers(0, 1 << 62, count), rng.random(count, np.float32), rows)


def over_the_wire(batch: pa.RecordBatch) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


@pytest.mark.parametrize("width", [0, 1, 96, 1024])
def test_pages_make_up_the_whole(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectionpages, "SELECTION_BYTES", 7 * max(1, width))
    monkeypatch.setattr(selectionpages, "SELECTION_ROWS", 9)
    chosen, parts, start = make(width=width), [], 0
    while start < len(chosen.ids):
        batch, digest = selection_page(chosen, start, 0, seal=SEAL)
        assert batch.schema == chosen.schema
        parts.append(read_selection(over_the_wire(batch), digest, seal=SEAL))
        start += len(parts[-1].ids)
    assert [len(part.ids) for part in parts][:-1] == [7 if width else 9] * (len(parts) - 1)
    found = join(parts)
    np.testing.assert_array_equal(found.ids, chosen.ids)
    np.testing.assert_array_equal(found.weights, chosen.weights)
    np.testing.assert_array_equal(found.rows, chosen.rows)
    assert found.digest() == chosen.digest()
    assert len(selection_page(chosen, 0, 3, seal=SEAL)[0]) == 3


def test_bytes_are_part_of_the_digest_and_none_leave_it_as_it_was() -> None:
    plain, more = make(), make()
    assert plain.digest() == Chosen(more.ids, more.weights, np.empty((50, 0), np.uint8)).digest()
    assert plain.digest() != Chosen(plain.ids, plain.weights, np.zeros((50, 1), np.uint8)).digest()
    assert join([]).nbytes == 0


@pytest.mark.parametrize("column", ["id", "weight", "row"])
def test_an_altered_page_is_seen(column: str) -> None:
    batch, digest = selection_page(make(width=4), 0, 0, seal=SEAL)
    at = batch.schema.names.index(column)
    altered = batch.set_column(
        at, batch.schema.field(at), batch.column(at).take(pa.array([1, 0, *range(2, 50)]))
    )
    with pytest.raises(Damaged, match="wrong digest"):
        read_selection(altered, digest, seal=SEAL)
    with pytest.raises(Damaged, match="wrong digest"):
        read_selection(batch, digest, seal=SEAL - 1)


def test_other_columns_are_no_page() -> None:
    batch, digest = selection_page(make(width=4), 0, 0, seal=SEAL)
    texts = batch.set_column(2, "row", pa.array(["text"] * 50))
    missing = batch.set_column(2, batch.schema.field(2), pa.array([None] * 50, pa.binary(4)))
    for other in (texts, missing, batch.select(["id"]), batch.append_column("further", batch.column("id"))):
        with pytest.raises(Damaged):
            read_selection(other, digest, seal=SEAL)
