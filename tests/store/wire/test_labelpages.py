"""Labels cross the wire in pages and come out the same, or the receiver notices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from headwater.errors import WrongUse
from headwater.store.labels import LabelRows, Source
from headwater.store.labels.page import Glossary, LabelPage
from headwater.store.labels.wanted import ALL, LabelQuery
from headwater.store.wire.labelpages import SCHEMA, asking, pack, query_of, unpack
from headwater.store.wire.messages import LabelRequest
from headwater.store.wire.payloads import Damaged

GLOSSARY = Glossary(("ant", "bee", "süd"), {3: "0" * 32, 1 << 40: "f" * 32})
SEAL = (1 << 64) - 5
NOTHING = Glossary()


def make_rows(samples: Any) -> LabelRows:
    """Of all sources, with and without scores."""
    count = len(samples)
    return LabelRows(
        np.asarray(samples, np.int64),
        (np.arange(count) % 3).astype(np.int32),
        np.where(np.arange(count) % 2, 0.9, np.nan).astype(np.float32),
        np.linspace(0, 4, count).astype(np.float32),
        (np.arange(count) % 3).astype(np.int8),
        np.where(np.arange(count) % 3 == 1, 1 << 40, 0),
        1_700_000_000_000 + np.arange(count),
        np.arange(count) + 1,
    )


PAGE = LabelPage(make_rows([5, 9, 1 << 62, (1 << 63) - 1]), GLOSSARY, None, state="s")


def over_the_wire(batch: pa.RecordBatch) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def come_through(page: LabelPage, *, after: int = -1, known: Glossary = NOTHING) -> LabelPage:
    batch, beside = pack(page, seal=SEAL, known=known.digest)
    return unpack(over_the_wire(batch), beside, after=after, seal=SEAL, known=known)[0]


def assert_same(one: LabelRows, other: LabelRows) -> None:
    for got, wanted in zip(one.columns(), other.columns(), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


def test_rows_and_what_they_mean() -> None:
    found = come_through(PAGE)
    assert_same(found.rows, PAGE.rows)
    assert (found.glossary.names, dict(found.glossary.versions)) == (GLOSSARY.names, dict(GLOSSARY.versions))
    assert (found.next, found.opinions, found.state) == (None, None, "s")


def test_opinions_come_behind_the_rows() -> None:
    for said in ([5, 9], []):
        found = come_through(replace(PAGE, opinions=make_rows(said), next=(1 << 63) - 1))
        assert_same(found.rows, PAGE.rows)
        assert found.opinions is not None
        assert_same(found.opinions, make_rows(said))
        assert found.next == (1 << 63) - 1


def test_a_page_without_rows_may_be_followed_by_others() -> None:
    empty = LabelPage(make_rows([]), GLOSSARY, 77)
    found = come_through(empty, after=12)
    assert (len(found.rows), found.next) == (0, 77)


def test_names_come_once() -> None:
    """And again when there are others by now."""
    first, second = (pack(PAGE, seal=SEAL, known=known)[1] for known in ("", GLOSSARY.digest))
    assert "süd".encode() in first
    assert "süd".encode() not in second
    assert come_through(PAGE, known=GLOSSARY).glossary is GLOSSARY
    renamed = Glossary(("ant", "wasp", "süd"), GLOSSARY.versions)
    assert come_through(replace(PAGE, glossary=renamed), known=GLOSSARY).glossary.names == renamed.names


def test_counts() -> None:
    counts = {
        "ant": {Source.HUMAN: 1, Source.MODEL: 2, Source.IMPORT: 1 << 40},
        "bee": dict.fromkeys(Source, 0),
    }
    batch, beside = pack(PAGE, seal=SEAL, counts=counts)
    assert unpack(batch, beside, after=-1, seal=SEAL, known=NOTHING)[1] == counts


@pytest.mark.parametrize("name", SCHEMA.names)
def test_an_altered_value_is_noticed(name: str) -> None:
    batch, beside = pack(PAGE, seal=SEAL)
    column = batch.column(name).to_numpy().copy()
    column[2] = 1 if np.isnan(column[2]) else column[2] - 1
    altered = batch.set_column(SCHEMA.names.index(name), SCHEMA.field(name), pa.array(column))
    with pytest.raises(Damaged, match="a wrong digest, or other columns"):
        unpack(altered, beside, after=-1, seal=SEAL, known=NOTHING)


def test_altered_names_and_another_request_are_noticed() -> None:
    batch, beside = pack(PAGE, seal=SEAL)
    for said, seal in (
        (beside.replace(b"bee", b"bed"), SEAL),
        (beside, SEAL ^ 1),
        (beside[:15], SEAL),
        (b"", 0),
    ):
        with pytest.raises(Damaged):
            unpack(batch, said, after=-1, seal=seal, known=NOTHING)


def test_other_columns_are_noticed() -> None:
    batch, beside = pack(PAGE, seal=SEAL)
    with pytest.raises(Damaged, match="other columns"):
        unpack(batch.drop_columns(["time"]), beside, after=-1, seal=SEAL, known=NOTHING)


BAD = {
    "not in order of id": replace(PAGE, rows=make_rows([9, 5])),
    "not in order": replace(PAGE, rows=make_rows([5, 5])),
    "classes or sources that there are not": replace(PAGE, glossary=Glossary(("ant",))),
    "is followed by one after 6": replace(PAGE, next=6),
    "opinions in a page": None,
    "something else than was said": None,
    "for other sources than there are": None,
}


@pytest.mark.parametrize("says", BAD)
def test_what_cannot_be_is_damaged_although_its_digest_is_right(says: str) -> None:
    page = BAD[says]
    if page is not None:
        batch, beside = pack(page, seal=SEAL)
    else:
        change: dict[str, Any] = {
            "opinions in a page": {"opinions": 99},
            "something else than was said": {"glossary": "0" * 32},
            "for other sources than there are": {"counts": {"ant": [1, 2]}},
        }[says]
        batch, beside = resealed(change)
    with pytest.raises(Damaged, match=says):
        unpack(batch, beside, after=-1, seal=SEAL, known=NOTHING)


def resealed(change: dict[str, Any]) -> tuple[pa.RecordBatch, bytes]:
    """What a store says that does not know what it says."""
    from headwater.store.wire.labelpages import _digest

    batch, beside = pack(PAGE, seal=SEAL)
    said = msgspec.msgpack.encode(msgspec.msgpack.decode(beside[16:], strict=False) | change)
    return batch, _digest(batch, said, SEAL) + said


def test_a_newer_store_may_say_more() -> None:
    batch, beside = resealed({"weather": "fair"})
    assert_same(unpack(batch, beside, after=-1, seal=SEAL, known=NOTHING)[0].rows, PAGE.rows)


def test_a_page_that_begins_before_what_was_asked_for() -> None:
    batch, beside = pack(PAGE, seal=SEAL)
    with pytest.raises(Damaged, match="after 5 is not in order"):
        unpack(batch, beside, after=5, seal=SEAL, known=NOTHING)


QUERIES = {
    "all": ALL,
    "some": LabelQuery(classes=("bee",), scores=(0.5, 1.0), margins=(0.0, 0.1), sources=(Source.HUMAN,)),
    "versions": LabelQuery(model="birds", older_than="0" * 8, sources=tuple(Source)),
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_is_asked_for_and_understood(name: str) -> None:
    assert query_of(LabelRequest("photos", "v", "c", **asking(QUERIES[name]))) == QUERIES[name]


def test_a_source_that_is_none() -> None:
    with pytest.raises(WrongUse, match="no source is called 'people'; known: human, model, import"):
        query_of(LabelRequest("photos", "v", "c", sources=["people"]))
