"""An index crosses the wire in pages and comes out the same, or the receiver notices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from datasets import Photo, write_parquet
from headwater.data.index import Index
from headwater.data.sources import SourceOptions, open_source
from headwater.errors import HeadwaterError
from headwater.store.wire import pages
from headwater.store.wire.pages import (
    check_page,
    content_of,
    index_page,
    index_schema,
    join_pages,
    read_header,
)
from headwater.store.wire.payloads import Damaged

Page = tuple[pa.RecordBatch, bytes]


def cut_up(index: Index, rows: int) -> list[Page]:
    """All pages, as a store makes them one by one."""
    found = []
    for start in range(0, len(index), rows):
        found.append(index_page(index, start, rows, index_schema(index, first=not start)))
    return found


def over_the_wire(page: pa.RecordBatch) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, page.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(page)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def put_together(sent: list[Page]) -> Index:
    start, batches = 0, []
    for batch, digest in sent:
        received = over_the_wire(batch)
        check_page(received, digest, start)
        batches.append(received)
        start += len(received)
    return join_pages(batches, read_header(batches[0]))


def assert_same(got: Index, wanted: Index) -> None:
    for name in ("ids", "labels", "sizes", "order"):
        assert getattr(got, name).tolist() == getattr(wanted, name).tolist(), name
    assert got.keys.equals(wanted.keys)
    assert (got.classes, got.exact_sizes, got.version) == (wanted.classes, wanted.exact_sizes, wanted.version)
    assert set(got.columns) == set(wanted.columns)
    for name, column in wanted.columns.items():
        assert got.columns[name].type == column.type
        assert got.columns[name].to_pylist() == column.to_pylist()
    assert content_of(got) == content_of(wanted)


@pytest.fixture(scope="module", params=["photo_folder", "photo_tars", "photo_parquet"])
def index(request: pytest.FixtureRequest) -> Index:
    return open_source(str(request.getfixturevalue(request.param))).index


@pytest.fixture
def made() -> Index:
    """Columns of every kind, with gaps and texts that are not ASCII."""
    count = 23
    gaps = np.arange(count) % 3 == 0
    columns = {
        "number": pa.array(np.arange(count, dtype=np.int32), mask=gaps),
        "score": pa.array(np.linspace(0, 1, count), mask=gaps),
        "good": pa.array(np.arange(count) % 2 == 0, mask=gaps),
        "camera": pa.array([None if gap else f"süd-{n}" for n, gap in enumerate(gaps)], pa.large_string()),
        "kind": pa.array(["a", "b", None] * 7 + ["c", "a"]).dictionary_encode(),
        "nothing": pa.nulls(count, pa.int64()),
    }
    keys = [f"ä/{number}.jpg" for number in range(count)]
    labels = np.where(gaps, -1, np.arange(count) % 2)
    return Index.build(
        keys,
        np.arange(count) * 1000,
        labels=labels,
        classes=("ant", "bee"),
        columns=columns,
        exact_sizes=False,
    )


@pytest.mark.parametrize("rows", [1, 7, 12, 36, 1000])
def test_pages_make_the_same_index(index: Index, rows: int) -> None:
    assert_same(put_together(cut_up(index, rows)), index)


@pytest.mark.parametrize("rows", [1, 7, 8, 23])
def test_columns_with_gaps(made: Index, rows: int) -> None:
    assert_same(put_together(cut_up(made, rows)), made)


def test_no_dictionary_crosses(made: Index) -> None:
    """Flight would leave it out of a stream of single batches, and the page could not be read."""
    assert pa.types.is_dictionary(made.columns["kind"].type)
    assert not any(pa.types.is_dictionary(field.type) for field in index_schema(made, first=True))


def test_where_samples_lie_is_not_told(index: Index) -> None:
    names = index_schema(index, first=True).names
    assert not {"shard", "offset", "order"} & set(names)
    batch, _ = index_page(index, 0, 0, index_schema(index, first=True))
    assert b"/tmp" not in bytes(batch.serialize())


def test_a_page_has_at_most_so_many_rows() -> None:
    count = pages.ROWS + 10
    large = Index.build([str(number) for number in range(count)], np.ones(count, np.int64))
    for asked in (0, count, 1 << 48):
        assert len(index_page(large, 0, asked, index_schema(large, first=True))[0]) == pages.ROWS
    assert len(index_page(large, pages.ROWS, 0, index_schema(large, first=False))[0]) == 10


def test_a_page_past_the_end_is_empty(made: Index) -> None:
    for start in (23, 24, 1 << 48):
        assert len(index_page(made, start, 0, index_schema(made, first=False))[0]) == 0


def test_rows_out_of_place_are_noticed(made: Index) -> None:
    batch, digest = cut_up(made, 8)[1]
    check_page(batch, digest, 8)
    with pytest.raises(Damaged, match="from row 0"):
        check_page(batch, digest, 0)


@pytest.mark.parametrize("name", ["id", "label", "size", "key", "column:camera", "column:good"])
def test_an_altered_value_is_noticed(made: Index, name: str) -> None:
    batch, digest = cut_up(made, 8)[0]
    at = batch.schema.get_field_index(name)
    column = batch.column(at)
    altered = pa.concat_arrays([column.slice(0, 6), column.slice(7, 1), column.slice(6, 1)])
    with pytest.raises(Damaged, match="digest"):
        check_page(batch.set_column(at, batch.schema.field(at), altered), digest, 0)


def test_another_header_is_noticed(made: Index) -> None:
    batch, digest = cut_up(made, 8)[0]
    other = Index.build(made.keys, made.sizes, labels=made.labels, classes=("bee", "ant"), exact_sizes=False)
    metadata = index_schema(other, first=True).metadata
    with pytest.raises(Damaged, match="digest"):
        check_page(batch.replace_schema_metadata(metadata), digest, 0)


def test_no_flipped_bit_of_a_page_goes_unnoticed() -> None:
    index = Index.build(["a", "b"], np.array([5, 6]), labels=np.array([0, -1]), classes=("x",))
    batch, digest = cut_up(index, 2)[0]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    sent, noticed = bytes(sink.getvalue()), 0
    for bit in range(8 * len(sent)):
        altered = bytearray(sent)
        altered[bit // 8] ^= 1 << bit % 8
        try:
            received = pa.ipc.open_stream(pa.py_buffer(bytes(altered))).read_next_batch()
            check_page(received, digest, 0)
            got = join_pages([received], read_header(received))
        except (HeadwaterError, pa.ArrowException, OSError, StopIteration):
            noticed += 1
            continue
        assert_same(got, index)
    assert noticed > 8 * 60


@pytest.mark.parametrize("gone", [1, 2])
def test_a_missing_page_is_noticed(made: Index, gone: int) -> None:
    batches = [batch for batch, _ in cut_up(made, 8)]
    header = read_header(batches[0])
    with pytest.raises(Damaged, match="rows of an index of 23"):
        join_pages([batch for place, batch in enumerate(batches) if place != gone], header)


def test_a_page_sent_twice_is_noticed(made: Index) -> None:
    batches = [batch for batch, _ in cut_up(made, 8)]
    with pytest.raises(HeadwaterError):
        join_pages([*batches, batches[1]], read_header(batches[0]))


def test_pages_of_differing_columns_are_noticed(made: Index) -> None:
    first, second, third = (batch for batch, _ in cut_up(made, 8))
    for gone in ("column:good", "key"):
        with pytest.raises(Damaged, match="do not fit together"):
            join_pages([first, second.drop_columns([gone]), third], read_header(first))
        with pytest.raises(Damaged):
            join_pages(
                [batch.drop_columns([gone, "id"]) for batch in (first, second, third)], read_header(first)
            )


@pytest.mark.parametrize("metadata", [None, {b"headwater.index": b"\xc1"}, {b"headwater.index": b"\x80"}])
def test_a_first_page_without_a_header(made: Index, metadata: dict[bytes, bytes] | None) -> None:
    batch, _ = cut_up(made, 8)[0]
    with pytest.raises(Damaged, match="says nothing of the rest"):
        read_header(batch.replace_schema_metadata(metadata))


def test_the_content_covers_what_the_version_leaves_out(photos: list[Photo], tmp_path: Path) -> None:
    base = open_source(str(write_parquet(tmp_path / "a.parquet", photos))).index
    again = open_source(
        str(write_parquet(tmp_path / "b" / "a.parquet", photos)), options=SourceOptions()
    ).index
    assert content_of(base) == content_of(again)
    plain = {"labels": base.labels, "ids": base.ids}
    for other in (
        Index.build(base.keys, base.sizes, **plain, classes=("x", "y", "z"), columns=base.columns),
        Index.build(base.keys, base.sizes, **plain, classes=base.classes),
        Index.build([f"{n}" for n in range(len(base))], base.sizes, **plain, classes=base.classes),
    ):
        assert other.version == base.version
        assert content_of(other) != content_of(base)
