"""Samples cross the wire unchanged, or the receiver notices: by property, and bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import HeadwaterError
from headwater.store.wire import payloads
from headwater.store.wire.payloads import CUT, FACTS, RAW, Damaged, Parcel, pack, unpack

LENGTHS = (0, 1, 4, 11, 12, 13, 16_383, 16_384, 16_385, 40_000)
"""Around twelve bytes a payload moves out of its view, around 16 KiB into a buffer of its own."""


def payload(length: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, length, np.uint8).tobytes()


def facts_of(count: int) -> Any:
    facts = np.zeros(count, FACTS)
    for number, name in enumerate(FACTS.names or ()):
        facts[name] = np.arange(count) * 7 + number + 1
    return facts


@st.composite
def parcels(draw: st.DrawFn) -> Parcel:
    lengths = draw(st.lists(st.sampled_from(LENGTHS) | st.integers(0, 60), min_size=1, max_size=8))
    count = len(lengths)
    ids = draw(st.lists(st.integers(0, (1 << 63) - 1), min_size=count, max_size=count, unique=True))
    errors = draw(st.dictionaries(st.integers(0, count - 1), st.binary(min_size=1, max_size=30)))
    short = st.lists(st.binary(max_size=20), min_size=count, max_size=count)
    fields = draw(st.none() | short)
    cut = draw(st.booleans())
    return Parcel(
        np.array(ids, np.int64),
        [None if place in errors else payload(length, place) for place, length in enumerate(lengths)],
        errors,
        fields,
        *((facts_of(count), draw(short)) if cut else ()),
    )


def serialize(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def deserialize(data: bytes) -> pa.RecordBatch:
    return pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch()


def told(parcel: Parcel) -> tuple[Any, ...]:
    """Everything that a parcel says, so that two can be compared."""
    return (
        parcel.ids.tolist(),
        [b"" if each is None else bytes(each) for each in parcel.payloads],
        dict(parcel.errors),
        None if parcel.fields is None else list(parcel.fields),
        parcel.facts.tobytes(),
        list(parcel.drawn),
    )


def arrives(parcel: Parcel) -> Parcel:
    batch = deserialize(serialize(pack(parcel)))
    return unpack(batch, parcel.ids, cut=bool(len(parcel.facts)))


@given(parcels())
def test_a_parcel_arrives_as_it_was_sent(parcel: Parcel) -> None:
    assert told(arrives(parcel)) == told(parcel)


@given(parcels())
def test_its_bytes_are_those_of_the_payloads(parcel: Parcel) -> None:
    sent = sum(len(each) for each in parcel.payloads if each is not None)
    assert parcel.bytes == arrives(parcel).bytes == sent


def kinds(data: bytes) -> Sequence[Any]:
    """The same bytes, held by everything that a source may hand over."""
    column = pa.array([b"before", data, b"after"], pa.large_binary())
    return [
        data,
        bytearray(data),
        memoryview(data),
        np.frombuffer(data, np.uint8),
        pa.py_buffer(data),
        memoryview(b"x" + data)[1:],
        np.frombuffer(b"xy" + data, np.uint8)[2:],
        column[1].as_buffer(),
    ]


@pytest.mark.parametrize("length", LENGTHS)
def test_whatever_holds_the_bytes(length: int) -> None:
    data = payload(length, 3)
    held = kinds(data)
    parcel = Parcel(np.arange(len(held), dtype=np.int64), held)
    assert [bytes(each) for each in arrives(parcel).payloads] == [data] * len(held)


def test_a_slice_of_a_batch_is_its_rows() -> None:
    parcel = Parcel(
        np.arange(10, dtype=np.int64),
        [payload(length, length) for length in LENGTHS],
        {4: b"bad"},
        [bytes([number]) for number in range(10)],
        facts_of(10),
        [bytes([number, 1]) for number in range(10)],
    )
    whole = pack(parcel)
    part = unpack(whole.slice(3, 5), parcel.ids[3:8], cut=True)
    assert told(part)[0:2] == ([3, 4, 5, 6, 7], [payload(length, length) for length in LENGTHS[3:8]])
    assert part.errors == {1: b"bad"}
    assert part.facts.tobytes() == parcel.facts[3:8].tobytes()
    assert part.fields == parcel.fields[3:8]


def test_large_payloads_are_not_copied_on_arrival() -> None:
    parcel = Parcel(np.arange(2, dtype=np.int64), [payload(40_000, 1), payload(20, 2)])
    data = np.frombuffer(serialize(pack(parcel)), np.uint8)
    batch = deserialize(data)
    for each in unpack(batch, parcel.ids, cut=False).payloads:
        assert np.shares_memory(each, data)


def test_these_are_the_checksums() -> None:
    """Golden: XXH3 of the payload, seeded with a hash of all else. Another number is another protocol."""
    ids = np.array([7, 8, 9], np.int64)
    raw = pack(Parcel(ids, [b"abc", b"", bytes(range(13))]))
    assert raw.column("checksum").to_pylist() == GOLDEN_RAW
    cut = pack(
        Parcel(ids, [b"abc", None, b"x"], {1: b"bad"}, [b"f", b"", b"g"], facts_of(3), [b"d", b"", b"e"])
    )
    assert cut.column("checksum").to_pylist() == GOLDEN_CUT


GOLDEN_RAW = [10348994112493271353, 934235136370271851, 8371230882217276085]
GOLDEN_CUT = [15313709178818191996, 15497690126191543937, 17228086255363824110]

SMALL = {
    "raw": Parcel(np.array([5, 1 << 62], np.int64), [payload(14, 1), payload(3, 2)]),
    "one": Parcel(np.array([5], np.int64), [b""]),
    "failed": Parcel(np.array([5, 6], np.int64), [payload(13, 1), None], {1: b"bad"}),
    "cut": Parcel(
        np.array([5, 6], np.int64),
        [payload(14, 1), None],
        {1: b"bad"},
        [b"fie", b""],
        facts_of(2),
        [b"\x01drawn", b""],
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_no_flipped_bit_goes_unnoticed(name: str) -> None:
    """Every bit of the message: the receiver raises, or has what was sent (padding carries nothing)."""
    parcel = SMALL[name]
    sent, wanted = serialize(pack(parcel)), told(parcel)
    cut = bool(len(parcel.facts))
    noticed = 0
    unnoticed = []
    for bit in range(8 * len(sent)):
        altered = bytearray(sent)
        altered[bit // 8] ^= 1 << bit % 8
        try:
            got = unpack(deserialize(bytes(altered)), parcel.ids, cut=cut)
        except (Damaged, pa.ArrowException, OSError, StopIteration):
            noticed += 1
            continue
        if told(got) != wanted:
            unnoticed.append(bit)
    assert not unnoticed
    assert noticed > 8 * 40  # or the flips did not reach anything


def views_of(batch: pa.RecordBatch) -> tuple[Any, list[Any]]:
    _, views, *rest = batch.column("payload").buffers()
    return np.frombuffer(views, payloads._VIEW).copy(), rest


def tamper(batch: pa.RecordBatch, views: Any, rest: list[Any]) -> pa.RecordBatch:
    column = pa.Array.from_buffers(pa.binary_view(), len(views), [None, pa.py_buffer(views), *rest])
    return batch.set_column(4, batch.schema.field(4), column)


@pytest.mark.parametrize(
    ("what", "value"),
    [("offset", -1), ("offset", 1 << 30), ("buffer", -1), ("buffer", 9), ("length", -5), ("length", 1 << 30)],
)
def test_a_view_that_points_elsewhere(what: str, value: int) -> None:
    parcel = Parcel(np.arange(3, dtype=np.int64), [payload(20, 1), payload(20_000, 2), payload(30, 3)])
    batch = pack(parcel)
    views, rest = views_of(batch)
    views[what][1] = value
    with pytest.raises(Damaged):
        unpack(tamper(batch, views, rest), parcel.ids, cut=False)


def test_views_that_change_places() -> None:
    parcel = Parcel(np.arange(2, dtype=np.int64), [payload(20, 1), payload(20, 2)])
    batch = pack(parcel)
    views, rest = views_of(batch)
    with pytest.raises(Damaged, match="2 of 2 samples have a wrong checksum, the first is 0"):
        unpack(tamper(batch, views[::-1].copy(), rest), parcel.ids, cut=False)


@pytest.mark.parametrize("text", [b"bad", b"field"])
@pytest.mark.parametrize("end", [-1, 1 << 28, (1 << 31) - 1])
def test_offsets_of_texts_that_point_elsewhere(text: bytes, end: int) -> None:
    parcel = Parcel(np.arange(2, dtype=np.int64), [b"a", b"b"], {0: b"bad", 1: b"bad"}, [b"field"] * 2)
    sent = serialize(pack(parcel))
    offsets = np.array([0, len(text), 2 * len(text)], "<i4").tobytes()
    assert sent.count(offsets) == 1
    altered = sent.replace(offsets, np.array([0, len(text), end], "<i4").tobytes())
    with pytest.raises(Damaged, match="cannot be used"):
        unpack(deserialize(altered), parcel.ids, cut=False)


def test_an_answer_to_another_request_is_noticed() -> None:
    """Requests for the same samples may differ in epoch, seed or steps: a reply is sealed to its own."""
    ids = np.array([5, 6], np.int64)
    parcel = Parcel(ids, [b"a", payload(14, 1)])
    mine, other = payloads.seal_of(b"ticket"), payloads.seal_of(b"tickeu")
    assert told(unpack(pack(parcel, mine), ids, cut=False, seal=mine)) == told(parcel)
    for seal in (other, 0):
        with pytest.raises(Damaged, match="2 of 2 samples have a wrong checksum"):
            unpack(pack(parcel, mine), ids, cut=False, seal=seal)


def test_samples_that_were_not_asked_for() -> None:
    parcel = Parcel(np.arange(3, dtype=np.int64), [b"a", b"b", b"c"])
    batch = pack(parcel)
    for asked in ([0, 1], [0, 2, 1], [0, 1, 2, 3], [0, 1, 7]):
        with pytest.raises(Damaged, match="not those asked for"):
            unpack(batch, np.array(asked, np.int64), cut=False)
    with pytest.raises(Damaged, match="not those asked for"):
        unpack(batch.slice(0, 0), parcel.ids, cut=False)


def test_columns_that_are_not_those_of_the_schema() -> None:
    parcel = Parcel(np.arange(1, dtype=np.int64), [b"a"])
    batch = pack(parcel)
    for other in (
        batch.drop_columns(["error"]),
        batch.rename_columns(["id", "sum", "error", "fields", "payload"]),
        batch.select(["checksum", "id", "error", "fields", "payload"]),
    ):
        with pytest.raises(Damaged, match="columns"):
            unpack(other, parcel.ids, cut=False)
    with pytest.raises(Damaged, match="columns"):
        unpack(batch, parcel.ids, cut=True)


def test_facts_of_one_sample_cannot_be_those_of_another() -> None:
    parcel = Parcel(np.arange(2, dtype=np.int64), [b"a", b"b"], {}, None, facts_of(2), [b"d", b"e"])
    batch = pack(parcel)
    for name in ("facts", "drawn"):
        at = batch.schema.get_field_index(name)
        swapped = batch.set_column(at, batch.schema.field(at), batch.column(at).take(pa.array([1, 0])))
        with pytest.raises(Damaged, match="checksum"):
            unpack(swapped, parcel.ids, cut=True)


def test_the_schemas_are_these() -> None:
    assert RAW.names == ["id", "checksum", "error", "fields", "payload"]
    assert CUT.names == [*RAW.names, "facts", "drawn"]
    assert FACTS.itemsize == 32


def test_a_payload_past_two_gib_is_refused_before_it_is_touched() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 31

    with pytest.raises(HeadwaterError, match="2 GiB"):
        payloads._views([Huge()])
