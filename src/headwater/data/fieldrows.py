"""The further fields of one sample as bytes, and back: values keep their types, and no code is among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np

from headwater.errors import SampleCorrupt


def encode_fields(fields: Mapping[str, Sequence[object]], place: int) -> bytes:
    """The further fields of one sample; raises `SampleCorrupt` for a value that cannot be sent."""
    try:
        row = {name: _to_sendable(values[place]) for name, values in fields.items()}
        return msgspec.msgpack.encode(row, enc_hook=_encode_array)
    except (TypeError, NotImplementedError, OverflowError, msgspec.MsgspecError) as error:
        raise SampleCorrupt(f"a field cannot be sent: {error}; open the dataset without it") from error


def decode_fields(data: bytes) -> dict[str, object]:
    """What `encode_fields` was given; raises `SampleCorrupt` for anything else."""
    try:
        found = msgspec.msgpack.decode(data, type=dict[str, object], ext_hook=_decode_array)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError, ArithmeticError) as error:
        raise SampleCorrupt(f"fields that cannot be read: {error}") from error
    return found


_ARRAY, _SCALAR = 1, 7  # msgpack's extension numbers for an array and a number of numpy's
_KINDS: dict[int, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    2: (datetime, datetime.isoformat, datetime.fromisoformat),
    3: (date, date.isoformat, date.fromisoformat),
    4: (time, time.isoformat, time.fromisoformat),
    5: (
        timedelta,
        lambda span: str(span // timedelta(microseconds=1)),
        lambda t: timedelta(microseconds=int(t)),
    ),
    6: (Decimal, str, Decimal),
}
"""Extension number > a type that msgpack would turn into text, and the way there and back."""


def _to_sendable(value: object) -> object:
    """The value with everything marked that would come out of msgpack as another type."""
    if isinstance(value, dict):
        return {name: _to_sendable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_to_sendable(each) for each in value]
    for code, (kind, write, _) in _KINDS.items():
        if type(value) is kind:
            return msgspec.msgpack.Ext(code, write(value).encode())
    return value


def _encode_array(value: object) -> object:
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "biuf":
        raise NotImplementedError(f"{type(value).__name__} is no plain data")
    head = msgspec.msgpack.encode([value.dtype.str, list(value.shape)])
    data = np.ascontiguousarray(value).tobytes()
    code = _ARRAY if isinstance(value, np.ndarray) else _SCALAR
    return msgspec.msgpack.Ext(code, len(head).to_bytes(2, "little") + head + data)


def _decode_array(code: int, data: memoryview) -> Any:
    if code in _KINDS:
        return _KINDS[code][2](bytes(data).decode())
    if code not in (_ARRAY, _SCALAR):
        raise ValueError(f"extension {code} is not known")
    start = 2 + int.from_bytes(data[:2], "little")
    kind, shape = msgspec.msgpack.decode(data[2:start], type=tuple[str, list[int]])
    dtype = np.dtype(kind)
    if dtype.kind not in "biuf":
        raise ValueError(f"an array of {kind}")
    whole = np.frombuffer(data[start:], dtype).reshape(shape)
    return whole.copy() if code == _ARRAY else whole[()]
