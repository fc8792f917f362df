"""Further fields become bytes and come back as they were; what is none is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.data.fieldrows import decode_fields, encode_fields
from headwater.errors import SampleCorrupt

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=8), plain, max_size=4))
def test_fields_arrive_as_they_were_sent(row: dict[str, object]) -> None:
    columns = {name: [None, value] for name, value in row.items()}
    assert decode_fields(encode_fields(columns, 1)) == row


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", "u1", "<i8", "?", "<u2"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 4)])
def test_arrays_among_fields_keep_type_and_shape(kind: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype="<i8").reshape(shape).astype(kind)
    found = decode_fields(encode_fields({"a": [array]}, 0))["a"]
    assert isinstance(found, np.ndarray)
    assert found.dtype.str == np.dtype(kind).str
    assert found.shape == shape
    assert np.array_equal(found, array)
    found[...] = 0  # a trainer may write to it


def test_an_array_that_is_a_view_is_sent_as_it_looks() -> None:
    array = np.arange(12).reshape(3, 4)[::-1, ::2]
    found = decode_fields(encode_fields({"a": [array]}, 0))["a"]
    assert np.array_equal(found, array)


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}.__class__, np.array([object()]), np.array(["x"]), 1 << 70, lambda: None],
    ids=["object", "class", "objects", "text", "large", "function"],
)
def test_a_field_that_is_no_plain_data_fails_its_sample(value: object) -> None:
    with pytest.raises(SampleCorrupt, match="cannot be sent"):
        encode_fields({"a": [value]}, 0)


@given(st.binary(max_size=60))
def test_fields_that_are_none(data: bytes) -> None:
    try:
        found = decode_fields(data)
    except SampleCorrupt:
        return
    assert isinstance(found, dict)


def test_an_array_that_claims_another_size_or_kind() -> None:
    def sent(kind: str, shape: list[int], data: bytes) -> bytes:
        head = msgspec.msgpack.encode([kind, shape])
        ext = msgspec.msgpack.Ext(1, len(head).to_bytes(2, "little") + head + data)
        return msgspec.msgpack.encode({"a": ext})

    assert np.array_equal(decode_fields(sent("<i2", [2], bytes(4)))["a"], [0, 0])
    for hostile in (
        sent("<i2", [3], bytes(4)),
        sent("<i2", [1 << 40], bytes(4)),
        sent("O", [1], bytes(8)),
        sent("|V4", [1], bytes(4)),
        sent("no kind", [1], bytes(4)),
        msgspec.msgpack.encode({"a": msgspec.msgpack.Ext(2, b"")}),
        msgspec.msgpack.encode({"a": msgspec.msgpack.Ext(1, b"\xff\xff")}),
        msgspec.msgpack.encode(["a"]),
        b"\x81\xa1a" + b"\x91" * 100_000 + b"\x00",
    ):
        with pytest.raises(SampleCorrupt, match="cannot be read"):
            decode_fields(hostile)


def test_fields_keep_their_types() -> None:
    values = [
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        datetime(2026, 1, 2),
        date(2026, 1, 2),
        time(3, 4, 5),
        timedelta(days=-1, microseconds=7),
        Decimal("1.230"),
        np.float32(0.5),
        {"when": [date(1999, 1, 1)], "text": "2026-01-02"},
    ]
    for value in values:
        back = decode_fields(encode_fields({"x": [value]}, 0))["x"]
        assert back == value
        assert type(back) is type(value)
