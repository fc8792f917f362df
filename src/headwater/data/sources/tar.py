"""WebDataset tars, never extracted: members with one base name are one sample."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from headwater.data.files import Buffer, Span
from headwater.data.index import Index
from headwater.data.indexing import open_index
from headwater.data.scans import Scan, Unit, make_rows
from headwater.data.sources.addresses import Address
from headwater.data.sources.base import IMAGE_SUFFIXES, Positions, SourceOptions
from headwater.data.sources.fields import decode_field
from headwater.data.sources.tarheaders import Member, Window, read_members
from headwater.errors import DatasetError, DatasetNotFound, WrongUse

_LARGEST_LABEL = 1 << 20


class TarSource:
    """Samples in tar shards; the key is the shard's stem and the member's name up to its first dot."""

    def __init__(self, address: Address, options: SourceOptions) -> None:
        self.uri = address.uri
        self.remote = address.files.remote
        self.cached_bytes: int | None = None
        self._files = address.files
        self._fields = options.fields
        self._paths = address.listing.column("path").to_pylist()
        self._sizes = address.listing.column("size").to_pylist()
        layout = TarLayout(address, options)
        self.index: Index = open_index(
            layout, refresh=options.refresh, progress=options.progress, forgotten=options.forgotten
        )
        if not len(self.index):
            raise DatasetNotFound(f"no image in {address.uri}; looked for .{', .'.join(layout.images)}")

    def read(self, positions: Positions) -> list[Buffer]:
        return self._read(positions, self.index.offset[positions], self.index.sizes[positions])

    def read_heads(self, positions: Positions, length: int) -> list[Buffer]:
        lengths = np.minimum(self.index.sizes[positions], length)
        return self._read(positions, self.index.offset[positions], lengths)

    def read_fields(self, positions: Positions) -> dict[str, list[object]]:
        return {name: self._read_field(name, positions) for name in self._fields}

    def blocks(self) -> Positions | None:
        return None

    def check_deletable(self, keys: Sequence[str]) -> None:
        raise WrongUse(
            f"a sample of {self.uri} is a member of a tar, which is not deleted in place; forget without "
            "deleting files, and write the file anew without it"
        )

    def delete(self, keys: Sequence[str]) -> int:
        self.check_deletable(keys)
        return 0

    def close(self) -> None:
        self._files.close()

    def _read(self, positions: Positions, offsets: Positions, lengths: Positions) -> list[Buffer]:
        shards = self.index.shard[positions].tolist()
        rows = zip(shards, offsets.tolist(), lengths.tolist(), strict=True)
        spans = [Span(self._paths[shard], start, length, self._sizes[shard]) for shard, start, length in rows]
        return self._files.read_many(spans)

    def _read_field(self, name: str, positions: Positions) -> list[object]:
        offsets, sizes = (self.index.columns[column].to_numpy()[positions] for column in field_columns(name))
        (have,) = np.nonzero(offsets >= 0)
        values: list[object] = [None] * len(positions)
        found = self._read(np.asarray(positions)[have], offsets[have], sizes[have])
        for place, data in zip(have.tolist(), found, strict=True):
            values[place] = decode_field(name, data)
        return values


def field_columns(name: str) -> tuple[str, str]:
    """The index columns that say where a passed-through member lies; -1 where a sample lacks it."""
    return f"{name}@offset", f"{name}@size"


@dataclass(slots=True)
class _Sample:
    """A sample while its shard is scanned."""

    base: str
    members: dict[str, Member] = field(default_factory=dict)


class TarLayout:
    """Shards of one dataset: a unit each, with size and mtime or ETag as fingerprint."""

    numeric_labels = True
    exact_sizes = True
    batch = 1

    def __init__(self, address: Address, options: SourceOptions) -> None:
        self.identity = msgspec.json.encode(["tar", address.uri, options.shape()]).decode()
        self.images = _extensions(options.image) or IMAGE_SUFFIXES
        self.workers = 16 if address.files.remote else 2
        self._label = options.label or "cls"
        self._fields = options.fields
        self._files = address.files
        self._shards = ShardNames(address)

    def units(self, known: Mapping[str, str]) -> list[Unit]:
        return self._shards.units()

    def scan(self, units: Sequence[Unit]) -> Scan:
        (unit,) = units
        path, size = self._shards.place(unit.name)
        window = Window(lambda start, length: self._files.read_range(path, start, length), size)
        samples, labels = self._samples(window, path)
        usable = [place for place, sample in enumerate(samples) if self._image(sample) is not None]
        rows = self._rows([samples[place] for place in usable], unit.name)
        chosen = pa.array([labels.get(samples[place].base) for place in usable], pa.large_string())
        rows = rows.set_column(rows.schema.get_field_index("label"), "label", chosen)
        lacking = len(samples) - len(usable)
        return Scan((unit,), rows, skipped={"samples without an image": lacking} if lacking else {})

    def _samples(self, window: Window, path: str) -> tuple[list[_Sample], dict[str, str | None]]:
        """Samples of a shard and their labels, which are read while the window is over them."""
        samples: dict[str, _Sample] = {}
        labels: dict[str, str | None] = {}
        extension, _, key = self._label.partition(":")
        for member in read_members(window, path):
            base, suffix = split_name(member.name)
            if not base or not suffix:
                continue
            sample = samples.setdefault(base, _Sample(base))
            if suffix in sample.members:
                raise DatasetError(f"tar {path} holds {base}.{suffix} twice; names in a shard must be unique")
            sample.members[suffix] = member
            if suffix == extension.lower():
                labels[base] = _label_text(window, member, key, path=path)
        return list(samples.values()), labels

    def _rows(self, samples: Sequence[_Sample], unit: str) -> pa.Table:
        images = [image for sample in samples if (image := self._image(sample)) is not None]
        prefix = self._shards.prefix(unit)
        columns: dict[str, pa.Array] = {}
        for name in self._fields:
            members = [sample.members.get(name.lower()) for sample in samples]
            places = [[-1, -1] if member is None else [member.offset, member.size] for member in members]
            table = np.array(places, np.int64).reshape(-1, 2)
            columns |= {column: pa.array(table[:, side]) for side, column in enumerate(field_columns(name))}
        return make_rows(
            [f"{prefix}/{sample.base}" for sample in samples],
            [image.size for image in images],
            unit=np.zeros(len(samples), np.int32),
            labels=pa.nulls(len(samples), pa.large_string()),
            offsets=np.array([image.offset for image in images], np.int64),
            columns=columns,
        )

    def _image(self, sample: _Sample) -> Member | None:
        return next((sample.members[suffix] for suffix in self.images if suffix in sample.members), None)


class ShardNames:
    """The shards of an address: where each lies, and what its samples' keys begin with."""

    def __init__(self, address: Address) -> None:
        names = address.names()
        columns = [address.listing.column(name).to_pylist() for name in ("path", "size", "tag")]
        self._places = {name: row for name, *row in zip(names, *columns, strict=True)}
        self._prefixes = _prefixes(names)

    def units(self) -> list[Unit]:
        """The prefix is in the fingerprint: keys change when a second shard of the same stem appears."""
        rows = self._places.items()
        return [Unit(name, f"{size} {tag} {self._prefixes[name]}") for name, (_, size, tag) in rows]

    def place(self, name: str) -> tuple[str, int]:
        path, size, _ = self._places[name]
        return path, size

    def prefix(self, name: str) -> str:
        return self._prefixes[name]


def _prefixes(names: Sequence[str]) -> dict[str, str]:
    stems = {name: name.rpartition("/")[2].rpartition(".")[0] for name in names}
    uses = Counter(stems.values())
    return {name: stem if uses[stem] == 1 else name.rpartition(".")[0] for name, stem in stems.items()}


def split_name(name: str) -> tuple[str, str]:
    """Base and extension of a member as WebDataset has them; ("", "") for a hidden file or one without a dot.

    Names are only keys, so odd ones are tidied and never refused: leading slashes, "." and ".."
    go, double slashes become one.
    """
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    if not parts or any(part.startswith(".") for part in parts):
        return "", ""
    stem, _, suffix = parts[-1].partition(".")
    return "/".join([*parts[:-1], stem]), suffix.lower()


def _extensions(written: str | None) -> tuple[str, ...]:
    return tuple(part.strip().lstrip(".").lower() for part in (written or "").split(",") if part.strip())


def _label_text(window: Window, member: Member, key: str, *, path: str) -> str | None:
    if member.size > _LARGEST_LABEL:
        raise DatasetError(f"label {member.name} of {path} has {member.size} bytes, above {_LARGEST_LABEL}")
    text = window.bytes(member.offset, member.size)
    if not key:
        return text.decode("utf-8", errors="replace").strip()
    try:
        value = json.loads(text)
        found = value.get(key) if isinstance(value, dict) else None
        label = None if found is None else str(found)
        (label or "").encode()  # half of a surrogate pair is JSON and no text
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"label {member.name} of {path} is not JSON: {error}; write it again") from error
    return label
