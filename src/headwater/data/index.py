"""The index of a dataset: immutable columns with one row per sample, and a version.

What belongs here: the columns, their file, and lookup by id. Where rows come from is the business
of `sources/`; when they are made anew, of `indexing.py`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.data.atomic import replacing
from headwater.errors import DatasetError, IdCollision, WrongUse

Ints = NDArray[np.int64]

FORMAT = 2
"""Raised when the file's columns change; a file of another format is rebuilt."""
FURTHER = "column:"
"""What the names of the data's own columns begin with in files, where they lie beside the index's."""

_METADATA = b"headwater.index"
_HASHED_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False)
class Places:
    """Where samples lie: the shard's number in `shards`, and a place in it that its source understands."""

    shards: tuple[str, ...]
    shard: NDArray[np.int32]
    offset: Ints


@dataclass(frozen=True, eq=False, repr=False)
class Index:
    """Columns of a dataset, one row per sample; made by `build` or `load`.

    `version` is a digest of ids, labels and sizes in their order, so two copies of one dataset have
    the same version wherever they lie. `labels` are -1 where a sample has none. `sizes` are bytes of
    the image file; where `exact_sizes` is false they are means over a row group. `label_texts` are kept
    where numbers do not tell how the labels were written. `notes` is what the indexer wrote beside the
    columns and no part of the version.
    """

    ids: Ints
    labels: Ints
    sizes: Ints
    keys: pa.LargeStringArray
    places: Places
    order: Ints
    classes: tuple[str, ...] = ()
    columns: Mapping[str, pa.Array] = field(default_factory=dict)
    exact_sizes: bool = True
    label_texts: pa.Array | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Index({len(self)} samples, {len(self.classes)} classes, version {self.version[:8]})"

    @property
    def shard(self) -> NDArray[np.int32]:
        return self.places.shard

    @property
    def offset(self) -> Ints:
        return self.places.offset

    @property
    def nbytes(self) -> int:
        """Bytes of all columns, in memory or mapped."""
        arrays = (self.ids, self.labels, self.sizes, self.order, self.shard, self.offset)
        texts = () if self.label_texts is None else (self.label_texts,)
        return sum(int(a.nbytes) for a in (*arrays, self.keys, *texts, *self.columns.values()))

    @cached_property
    def version(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for column in (self.ids, self.labels, self.sizes):
            digest.update(np.ascontiguousarray(column, dtype="<i8").data)
        return digest.hexdigest()

    def key(self, position: int) -> str:
        """The sample's key: its path within the dataset, or shard and member."""
        return str(self.keys[int(position)].as_py())

    def position_of(self, ids: Ints) -> Ints:
        """The row of each id; raises `WrongUse` for an id that the dataset does not have."""
        wanted = np.asarray(ids, dtype=np.int64)
        found, known = self._find(wanted)
        if not known.all():
            first = int(wanted[~known].flat[0])
            raise WrongUse(f"dataset {self.version[:8]} of {len(self)} samples has no sample with id {first}")
        return found

    def has(self, ids: Ints) -> NDArray[np.bool_]:
        """Which of these ids are those of samples of the dataset."""
        return self._find(np.asarray(ids, dtype=np.int64))[1]

    def _find(self, wanted: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """The row of each id, and whether it is there at all; any row where it is not."""
        if not len(self):
            return np.zeros_like(wanted), np.zeros(wanted.shape, dtype=bool)
        found = self.order[np.minimum(self._rank(wanted), len(self) - 1)]
        return found, self.ids[found] == wanted

    def _rank(self, wanted: Ints) -> Ints:
        """How many ids are smaller: bisection within a bucket, so it costs the same in any dataset.

        Ids are hashes, so buckets by their first bits are about equally full.
        """
        shift, bounds = self._buckets
        bucket = np.minimum(np.maximum(wanted >> shift, 0), len(bounds) - 2)
        low, high = bounds[bucket], bounds[bucket + 1]
        while (open_ := low < high).any():
            middle = np.minimum((low + high) >> 1, len(self) - 1)
            smaller = open_ & (self.ids[self.order[middle]] < wanted)
            low = np.where(smaller, middle + 1, low)
            high = np.where(open_ & ~smaller, middle, high)
        rank: Ints = low
        return rank

    @cached_property
    def _buckets(self) -> tuple[int, Ints]:
        """Bits to drop from an id for its bucket of about four, and where each bucket begins in `order`."""
        bits = max(0, len(self).bit_length() - 2)
        counts = np.bincount(self.ids >> (63 - bits), minlength=1 << bits)
        return 63 - bits, np.concatenate(([0], np.cumsum(counts))).astype(np.int64)

    @classmethod
    def build(
        cls,
        keys: pa.Array | Sequence[str],
        sizes: Ints,
        *,
        labels: Ints | None = None,
        classes: Sequence[str] = (),
        ids: Ints | None = None,
        places: Places | None = None,
        columns: Mapping[str, pa.Array] | None = None,
        exact_sizes: bool = True,
    ) -> Index:
        """An index from columns of one length; ids are hashed from the keys unless given.

        Raises `IdCollision` when two rows have one id.
        """
        names = _large_strings(keys)
        rows = len(names)
        hashed = sample_ids(names) if ids is None else np.ascontiguousarray(ids, dtype=np.int64)
        order = np.argsort(hashed).astype(np.int64, copy=False)
        _refuse_collisions(hashed, order, keys=names)
        index = cls(
            ids=hashed,
            labels=np.full(rows, -1, np.int64) if labels is None else np.asarray(labels, np.int64),
            sizes=np.asarray(sizes, dtype=np.int64),
            keys=names,
            places=places or Places(("",), np.zeros(rows, np.int32), np.zeros(rows, np.int64)),
            order=order,
            classes=tuple(classes),
            columns=dict(columns or {}),
            exact_sizes=exact_sizes,
        )
        index._check_lengths()
        return index

    def _check_lengths(self) -> None:
        columns: dict[str, Any] = {"ids": self.ids, "labels": self.labels, "sizes": self.sizes}
        columns |= {"order": self.order, "shard": self.shard, "offset": self.offset, **self.columns}
        for name, column in columns.items():
            if len(column) != len(self.keys):
                raise WrongUse(f"column {name!r} has {len(column)} rows, the keys have {len(self.keys)}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to `path` so that a reader sees the old file or the new one, also after a power cut."""
        write_batch(path, self._as_batch())

    def _as_batch(self) -> pa.RecordBatch:
        columns = {"id": self.ids, "label": self.labels, "size": self.sizes, "key": self.keys}
        columns |= {"shard": self.shard, "offset": self.offset, "order": self.order}
        columns |= {} if self.label_texts is None else {"label_text": self.label_texts}
        columns |= {FURTHER + name: column for name, column in self.columns.items()}
        batch = pa.RecordBatch.from_pydict({name: pa.array(column) for name, column in columns.items()})
        header = self._header()
        header["content"] = content_digest(batch, header)
        return batch.replace_schema_metadata({_METADATA: msgspec.json.encode(header)})

    def _header(self) -> dict[str, object]:
        return {
            "format": FORMAT,
            "version": self.version,
            "classes": self.classes,
            "shards": self.places.shards,
            "exact_sizes": self.exact_sizes,
            "notes": self.notes,
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, verify: bool = True) -> Index:
        """Map a saved index into memory; raises `DatasetError` if the file is damaged or of another format.

        `verify` recomputes the digests and checks every offset, which reads the file.
        """
        try:
            batch = read_batch(path)
            header = msgspec.json.decode((batch.schema.metadata or {})[_METADATA])
            if header["format"] != FORMAT:
                raise ValueError(f"format {header['format']}, this version reads {FORMAT}")
            index = cls._from_batch(batch, header)
            if verify:
                batch.validate(full=True)
                content = header.pop("content")
                if content_digest(batch, header) != content or index.version != header["version"]:
                    raise ValueError("its digest does not match its content")
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, msgspec.MsgspecError) as error:
            raise DatasetError(f"index file {os.fspath(path)} cannot be used: {error}; delete it") from error
        return index

    @classmethod
    def _from_batch(cls, batch: pa.RecordBatch, header: Mapping[str, Any]) -> Index:
        def numbers(name: str) -> NDArray[Any]:
            column: NDArray[Any] = batch.column(name).to_numpy(zero_copy_only=True)
            return column

        names = batch.schema.names
        further = [name for name in names if name.startswith(FURTHER)]
        return cls(
            ids=numbers("id"),
            labels=numbers("label"),
            sizes=numbers("size"),
            keys=batch.column("key"),
            places=Places(tuple(header["shards"]), numbers("shard"), numbers("offset")),
            order=numbers("order"),
            classes=tuple(header["classes"]),
            columns={name.removeprefix(FURTHER): batch.column(name) for name in further},
            exact_sizes=header["exact_sizes"],
            label_texts=batch.column("label_text") if "label_text" in names else None,
            notes=header["notes"],
        )


def sample_ids(keys: pa.Array | Sequence[str]) -> Ints:
    """The id of each key: the first 63 bits of its BLAKE2b-64 digest (UTF-8, big-endian)."""
    encoded = _large_strings(keys).cast(pa.large_binary())
    ids = np.empty(len(encoded), dtype=np.int64)
    for start in range(0, len(encoded), _HASHED_AT_ONCE):
        some = encoded.slice(start, _HASHED_AT_ONCE).to_pylist()
        digests = b"".join([hashlib.blake2b(key, digest_size=8).digest() for key in some])
        ids[start : start + len(some)] = np.frombuffer(digests, dtype=">u8") >> np.uint64(1)
    return ids


def content_digest(batch: pa.RecordBatch, header: Mapping[str, object]) -> str:
    """BLAKE2b-128 of a header and of the names, types and values of all columns.

    Of the values and not of the file's bytes: Arrow leaves open how a file pads its buffers, and which
    bitmaps of absent values it drops.
    """
    digest = hashlib.blake2b(msgspec.json.encode(header), digest_size=16)
    for kind, column in zip(batch.schema, batch.columns, strict=True):
        digest.update(f"{kind.name} {kind.type} {len(column)}\n".encode())
        for part in _value_bytes(column):
            digest.update(part)
    return digest.hexdigest()


def _value_bytes(column: pa.Array) -> Iterator[Any]:
    """The bytes that say what a column holds; numbers and texts are not copied unless they are a slice."""
    if pa.types.is_dictionary(column.type):
        yield from _value_bytes(column.indices)
        yield from _value_bytes(column.dictionary)
        return
    if column.null_count:
        yield np.packbits(column.is_null().to_numpy(zero_copy_only=False)).data
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if len(column) and _is_text(column.type):
        yield from _text_bytes(column.cast(pa.large_string()))
    elif len(column) and pa.types.is_primitive(column.type):
        width = column.type.bit_width // 8
        yield memoryview(column.buffers()[1])[column.offset * width : (column.offset + len(column)) * width]
    else:
        yield msgspec.json.encode(column.to_pylist())  # nothing that a source puts here, unless empty


def _text_bytes(column: pa.LargeStringArray) -> Iterator[Any]:
    _, bounds, data = column.buffers()
    ends = np.frombuffer(bounds, np.int64)[column.offset : column.offset + len(column) + 1]
    yield (ends - ends[0] if ends[0] else ends).data
    yield b"" if data is None else memoryview(data)[ends[0] : ends[-1]]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def write_batch(path: str | os.PathLike[str], batch: pa.RecordBatch) -> None:
    """Write one record batch as an Arrow file, atomically and durably."""
    with replacing(path) as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def read_batch(path: str | os.PathLike[str]) -> pa.RecordBatch:
    """The one record batch of an Arrow file, mapped and not copied."""
    reader = pa.ipc.open_file(pa.memory_map(os.fspath(path)))
    if reader.num_record_batches != 1:
        raise ValueError(f"{reader.num_record_batches} record batches instead of 1")
    return reader.get_batch(0)


def _large_strings(keys: pa.Array | Sequence[str]) -> pa.LargeStringArray:
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    if isinstance(keys, pa.Array):
        return keys if keys.type == pa.large_string() else keys.cast(pa.large_string())
    return pa.array(keys, type=pa.large_string())


def _refuse_collisions(ids: Ints, order: Ints, *, keys: pa.LargeStringArray) -> None:
    ranked = ids[order]
    (twins,) = np.nonzero(ranked[1:] == ranked[:-1])
    if not len(twins):
        return
    first, second = (keys[int(order[twins[0] + k])].as_py() for k in (0, 1))
    if first == second:
        raise IdCollision(f"key {first!r} occurs twice; {len(twins)} such rows; keys must be unique")
    raise IdCollision(f"keys {first!r} and {second!r} have one id, {ranked[twins[0]]}; rename one of them")
