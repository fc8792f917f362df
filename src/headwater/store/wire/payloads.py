"""Samples as Arrow record batches, each with a checksum that also covers who it is and what was done to it.

One row per sample, in the order of the request. `payload` is a file, or the pixels of an image at its cut
in a codec; `error` says why there is none. Payloads of some size stay in buffers of their own (Arrow's view
layout), so that neither side copies them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from headwater.data.randomness import as_words, mix
from headwater.errors import HeadwaterError

RAW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("checksum", pa.uint64(), nullable=False),
        pa.field("error", pa.binary()),
        pa.field("fields", pa.binary()),
        pa.field("payload", pa.binary_view()),
    ]
)
CUT = pa.schema(
    [
        *RAW,
        pa.field("facts", pa.binary(32), nullable=False),
        pa.field("drawn", pa.binary()),
    ]
)
FACTS = np.dtype(
    [
        ("done", "<u2"),
        ("codec", "<u2"),
        ("height", "<i4"),
        ("width", "<i4"),
        ("channels", "<i4"),
        ("source_height", "<i4"),
        ("source_width", "<i4"),
        ("orientation", "<u4"),
        ("seconds", "<f4"),
    ]
)
"""What was done to a sample: steps, codec, the image's shape, the whole image's size, and the CPU it took."""

_VIEW = np.dtype([("length", "<i4"), ("prefix", "V4"), ("buffer", "<i4"), ("offset", "<i4")])
_INLINE = 12  # bytes that a view holds itself
_ALONE_FROM = 16_384  # a payload of this many bytes is cheaper to send from where it lies than to copy
_NONE = np.zeros(0, FACTS)


class Damaged(HeadwaterError):
    """What came over the wire is not what was sent."""


@dataclass(frozen=True)
class Parcel:
    """The answer to a request; `facts` and `drawn` are empty where all samples are files."""

    ids: NDArray[np.int64]
    payloads: Sequence[Any]
    errors: Mapping[int, bytes] = field(default_factory=dict)
    fields: Sequence[bytes] | None = None
    facts: NDArray[np.void] = field(default_factory=lambda: _NONE)
    drawn: Sequence[bytes] = ()

    @property
    def bytes(self) -> int:
        """Bytes of the payloads."""
        return sum(len(payload) for payload in self.payloads if payload is not None)

    def first(self, count: int) -> Parcel:
        """Its first samples."""
        if count == len(self.ids):
            return self
        return Parcel(
            self.ids[:count],
            self.payloads[:count],
            {place: text for place, text in self.errors.items() if place < count},
            None if self.fields is None else self.fields[:count],
            self.facts[:count],
            self.drawn[:count],
        )


def seal_of(ticket: bytes) -> int:
    """What ties a reply to its request: an answer to another one, or to an altered one, is not accepted."""
    return xxhash.xxh3_64_intdigest(ticket)


def pack(parcel: Parcel, seal: int = 0) -> pa.RecordBatch:
    """A record batch of the schema `RAW`, or `CUT` if there are facts; `seal` is that of the request."""
    count = len(parcel.ids)
    payloads = [b"" if payload is None else payload for payload in parcel.payloads]
    errors = [parcel.errors.get(place) for place in range(count)] if parcel.errors else None
    columns = [
        pa.array(parcel.ids, pa.int64()),
        pa.array(_checksums(parcel, payloads, seal), pa.uint64()),
        _nothing(count) if errors is None else pa.array(errors, pa.binary()),
        _nothing(count) if parcel.fields is None else pa.array(parcel.fields, pa.binary()),
        _views(payloads),
    ]
    if not len(parcel.facts):
        return pa.RecordBatch.from_arrays(columns, schema=RAW)
    facts = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(32), count, [None, pa.py_buffer(np.ascontiguousarray(parcel.facts))]
    )
    return pa.RecordBatch.from_arrays([*columns, facts, pa.array(parcel.drawn, pa.binary())], schema=CUT)


@lru_cache(maxsize=16)
def _nothing(count: int) -> pa.Array:
    """An empty column; most requests of a run have one length."""
    return pa.nulls(count, pa.binary())


def unpack(batch: pa.RecordBatch, ids: NDArray[np.int64], *, cut: bool, seal: int = 0) -> Parcel:
    """What `pack` was given; raises `Damaged` if anything is missing, out of place or altered."""
    try:
        if not batch.schema.equals(CUT if cut else RAW):
            raise ValueError(f"columns {batch.schema.names}")
        batch.validate(full=True)
        got = batch.column("id").to_numpy(zero_copy_only=True)
        if not np.array_equal(got, ids):
            raise ValueError(f"{len(got)} samples that are not those asked for")
        parcel = Parcel(
            got,
            _payloads(batch.column("payload")),
            _texts(batch.column("error")),
            _all_texts(batch.column("fields")),
            *(_facts(batch) if cut else ()),
        )
        expected = batch.column("checksum").to_numpy(zero_copy_only=True)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise Damaged(f"the reply cannot be used: {error}") from error
    wrong = np.flatnonzero(np.array(_checksums(parcel, parcel.payloads, seal), np.uint64) != expected)
    if len(wrong):
        raise Damaged(
            f"{len(wrong)} of {len(ids)} samples have a wrong checksum, the first is {ids[wrong[0]]}"
        )
    return parcel


def _checksums(parcel: Parcel, payloads: Sequence[Any], seal: int) -> list[int]:
    """XXH3 of each payload, seeded with a hash of the request and of all else that is said of the sample."""
    words = mix(as_words(parcel.ids) ^ np.uint64(seal))
    if len(parcel.facts):
        for part in np.ascontiguousarray(parcel.facts).view("<u8").reshape(len(words), -1).T:
            words = mix(words ^ part)
        words = mix(
            words ^ np.array([xxhash.xxh3_64_intdigest(row or b"") for row in parcel.drawn], np.uint64)
        )
    if parcel.fields is not None:
        words = mix(words ^ np.array([xxhash.xxh3_64_intdigest(f or b"") for f in parcel.fields], np.uint64))
    for place, text in parcel.errors.items():
        words[place] ^= np.uint64(xxhash.xxh3_64_intdigest(text, 1))
    digest = xxhash.xxh3_64_intdigest
    return [digest(payload, seed) for payload, seed in zip(payloads, words.tolist(), strict=True)]


def _views(payloads: Sequence[Any]) -> pa.Array:
    """Payloads as Arrow views: large ones where they lie, small ones joined."""
    lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
    if lengths.max(initial=0) > np.iinfo(np.int32).max:
        raise HeadwaterError("a payload of more than 2 GiB cannot be sent")
    views = np.zeros(len(payloads), _VIEW)
    views["length"] = lengths
    small = lengths < _ALONE_FROM
    buffers = [pa.py_buffer(b"".join([p for p, s in zip(payloads, small.tolist(), strict=True) if s]))]
    ends = np.cumsum(np.where(small, lengths, 0))
    views["offset"] = np.where(small, ends - lengths, 0)
    large = np.flatnonzero(~small)
    views["buffer"][large] = np.arange(1, len(large) + 1)
    buffers += [pa.py_buffer(payloads[place]) for place in large.tolist()]
    _write_prefixes(views, payloads, small, np.frombuffer(buffers[0], np.uint8))
    return pa.Array.from_buffers(pa.binary_view(), len(views), [None, pa.py_buffer(views), *buffers])


def _write_prefixes(
    views: NDArray[np.void], payloads: Sequence[Any], small: NDArray[np.bool_], joined: NDArray[np.uint8]
) -> None:
    """A view repeats the first four bytes of what it refers to; up to twelve bytes it holds itself."""
    raw = views.view("u1").reshape(len(views), 16)
    (joint,) = np.nonzero(small & (views["length"] > _INLINE))
    raw[joint, 4:8] = joined[views["offset"][joint, None] + np.arange(4)]
    (large,) = np.nonzero(~small)
    heads = b"".join([payloads[place][:4] for place in large.tolist()])
    raw[large, 4:8] = np.frombuffer(heads, np.uint8).reshape(-1, 4)
    for place in np.flatnonzero(views["length"] <= _INLINE).tolist():
        held = np.frombuffer(payloads[place], np.uint8) if len(payloads[place]) else ()
        raw[place, 4:] = 0
        raw[place, 4 : 4 + len(held)] = held


def _payloads(column: pa.Array) -> list[NDArray[np.uint8]]:
    """The payloads as arrays over the received memory; nothing is copied."""
    _, raw, *buffers = column.buffers()
    views = np.frombuffer(raw, _VIEW, count=len(column), offset=16 * column.offset)
    data = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
    inline = np.frombuffer(raw, np.uint8, count=16 * len(column), offset=16 * column.offset)
    out = []
    places = zip(views["length"].tolist(), views["buffer"].tolist(), views["offset"].tolist(), strict=True)
    for place, (length, buffer, offset) in enumerate(places):
        if length <= _INLINE:
            out.append(inline[16 * place + 4 : 16 * place + 4 + length])
        else:
            out.append(data[buffer][offset : offset + length])
    return out


def _texts(column: pa.Array) -> dict[int, bytes]:
    if column.null_count == len(column):
        return {}
    return {place: text for place, text in enumerate(column.to_pylist()) if text is not None}


def _all_texts(column: pa.Array) -> list[bytes] | None:
    return None if column.null_count == len(column) else column.to_pylist()


def _facts(batch: pa.RecordBatch) -> tuple[NDArray[np.void], list[bytes]]:
    column = batch.column("facts")
    facts = np.frombuffer(column.buffers()[1], FACTS, count=len(column), offset=32 * column.offset)
    return facts, batch.column("drawn").to_pylist()
