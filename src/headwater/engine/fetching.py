"""What reading gives: a value per sample, or why there is none."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.data.codecs.packing import Packing
from headwater.errors import ForkedUse, HeadwaterError, Refused, Unreachable

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Wanted:
    """Samples to fetch: where they stand in the index, who they are, and the epoch that keys their draws."""

    positions: Positions
    ids: NDArray[np.int64]
    epoch: int = 0
    ways: NDArray[np.uint8] | None = None
    """For each sample, which of the reader's ways; None: the first."""
    packed: bool = False
    """Whether images are to come as they crossed the link, too."""

    def take(self, places: NDArray[np.intp] | slice) -> Wanted:
        """Some of them."""
        ways = None if self.ways is None else self.ways[places]
        return replace(self, positions=self.positions[places], ids=self.ids[places], ways=ways)


@dataclass(frozen=True, eq=False)
class Costs:
    """What it took to fetch each sample: columns, for whoever plans."""

    bytes: NDArray[np.int64]
    store_seconds: NDArray[np.float32]
    trainer_seconds: NDArray[np.float32]
    """CPU that was spent on opening what came."""
    sizes: NDArray[np.int32]
    """Height and width of the whole picture, 0 where that is not known yet."""
    able: NDArray[np.bool_]
    """False where the store tried and could not, or the file is of a kind of which no excerpt can be made."""

    @classmethod
    def nothing(cls, count: int) -> Costs:
        store, trainer = np.zeros((2, count), np.float32)
        sizes = np.zeros((count, 2), np.int32)
        return cls(np.zeros(count, np.int64), store, trainer, sizes, np.ones(count, np.bool_))

    def put(self, places: NDArray[np.intp] | slice, other: Costs) -> None:
        """Write another's rows into these places."""
        self.bytes[places], self.store_seconds[places] = other.bytes, other.store_seconds
        self.trainer_seconds[places], self.sizes[places] = other.trainer_seconds, other.sizes
        self.able[places] = other.able

    def take(self, places: Sequence[int]) -> Costs:
        return Costs(
            self.bytes[places],
            self.store_seconds[places],
            self.trainer_seconds[places],
            self.sizes[places],
            self.able[places],
        )


@dataclass(frozen=True)
class Packed:
    """An image as it crossed the link, and how it is opened."""

    payload: Any
    packing: Packing


@dataclass(frozen=True)
class Fetched:
    """A value per sample that was wanted, in order; None where it failed.

    Values are files, or images that went through `done[place]` steps of the pipeline where the store
    ran those; `done` None means files throughout. `packed` has images as they crossed, by place, if they were
    wanted so; `held` says which samples came out of a cache, None: none did.
    """

    values: Sequence[Any]
    fields: Mapping[str, Sequence[object]] = field(default_factory=dict)
    failed: Mapping[int, Exception] = field(default_factory=dict)
    done: NDArray[np.uint8] | None = None
    bytes_moved: int = 0
    costs: Costs | None = None
    packed: Mapping[int, Packed] = field(default_factory=dict)
    held: NDArray[np.bool_] | None = None


class Reader(Protocol):
    """Where a run gets its samples from."""

    def sizes(self, positions: Positions) -> NDArray[np.int64]:
        """Bytes of each file, as far as that is known beforehand; 0 where it is not."""
        ...

    def fetch(self, wanted: Wanted) -> Fetched:
        """Raises only what concerns all samples: a store that cannot be reached, or refuses."""
        ...

    def key(self, position: int) -> str: ...

    def abandon(self) -> None:
        """The run is over: whoever still waits in `fetch` may stop waiting."""
        ...


class Files(Protocol):
    """Something that reads whole files and further fields in bulk."""

    def read(self, positions: Positions) -> Sequence[Any]: ...
    def read_fields(self, positions: Positions) -> Mapping[str, Sequence[object]]: ...


def fetch_files(files: Files, positions: Positions) -> Fetched:
    """Read in bulk; if one sample cannot be read, each is read by itself, so that the others still are."""
    try:
        values = files.read(positions)
        fields = files.read_fields(positions)
    except (Unreachable, ForkedUse, Refused):
        raise
    except (HeadwaterError, OSError) as error:
        if len(positions) == 1:
            return Fetched([None], failed={0: error})
        return _join([fetch_files(files, positions[place : place + 1]) for place in range(len(positions))])
    return Fetched(values, fields, bytes_moved=sum(map(len, values)))


def _join(singles: Sequence[Fetched]) -> Fetched:
    names = {name for single in singles for name in single.fields}
    return Fetched(
        [single.values[0] for single in singles],
        {name: [single.fields.get(name, [None])[0] for single in singles] for name in names},
        {place: single.failed[0] for place, single in enumerate(singles) if single.failed},
        bytes_moved=sum(single.bytes_moved for single in singles),
    )


def content_digests(reader: Files, positions: NDArray[np.int64]) -> list[str]:
    """BLAKE2b-128 of the files at these positions, in hexadecimal; of those that can be read."""
    if not len(positions):
        return []
    found = fetch_files(reader, positions)
    whole = (value for place, value in enumerate(found.values) if place not in found.failed)
    return [hashlib.blake2b(value, digest_size=16).hexdigest() for value in whole]
