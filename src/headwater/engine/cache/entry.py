"""A held sample as bytes, in memory and on disk: how it was packed, its further fields, its payload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headwater.data.codecs.packing import Packing
from headwater.data.fieldrows import decode_fields
from headwater.data.image import Limits
from headwater.data.image.header import Data, view_bytes
from headwater.errors import SampleCorrupt

LENGTH = 4
"""Bytes that say how long the head is, which a file without further fields does not have."""


class _Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    done: int
    packing: Packing | None
    fields: bytes


_DECODER = msgspec.msgpack.Decoder(_Head)


@dataclass(frozen=True)
class Entry:
    """A held sample: the file, or an image after `done` steps."""

    value: Any
    done: int = 0
    fields: Mapping[str, object] = field(default_factory=dict)


def pack(payload: Data, *, done: int = 0, packing: Packing | None = None, fields: bytes = b"") -> bytes:
    """A file, or with a packing an image as it crossed the link; `fields` are its encoded fields."""
    plain = packing is None and not fields
    head = b"" if plain else msgspec.msgpack.encode(_Head(done, packing, fields))
    return b"".join((len(head).to_bytes(LENGTH, "little"), head, view_bytes(payload)))


def unpack(entry: bytes, limits: Limits) -> Entry:
    """The sample as it first came; raises `SampleCorrupt` or `SampleTooLarge` where it cannot be."""
    begin = LENGTH + int.from_bytes(entry[:LENGTH], "little")
    payload = memoryview(entry)[begin:]
    if begin == LENGTH:
        return Entry(payload)
    try:
        head = _DECODER.decode(memoryview(entry)[LENGTH:begin])
    except msgspec.MsgspecError as error:
        raise SampleCorrupt(f"a held sample of {len(entry)} bytes cannot be read: {error}") from error
    value = payload if head.packing is None else head.packing.open(payload, limits)
    return Entry(value, head.done, decode_fields(head.fields) if head.fields else {})
