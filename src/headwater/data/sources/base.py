"""What a source is, and the options that shape one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.data.files import Buffer
from headwater.data.forgotten import Forgotten
from headwater.data.index import Index

Positions = NDArray[np.int64]

IMAGE_SUFFIXES = ("jpg", "jpeg", "jpe", "png", "webp")
"""What counts as an image, in any case."""


@dataclass(frozen=True)
class SourceOptions:
    """How to read a dataset; `docs/reference` says what each means for each layout.

    split     folder: the sub-folder of that name; shards: those whose name begins with it, or below it
    image     tar: extensions that hold the image, by comma; parquet: the image column
    label     tar: extension of the label, or a key in a JSON member as "json:label"; parquet: the column
    fields    what else to pass through: tar extensions or parquet columns
    refresh   index from scratch
    progress  a bar on standard error; None: only when that is a terminal
    storage   endpoint and credentials for s3, on top of the environment
    forgotten samples to leave out; None: those that the user has forgotten
    """

    split: str | None = None
    image: str | None = None
    label: str | None = None
    fields: tuple[str, ...] = ()
    refresh: bool = False
    progress: bool | None = None
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    forgotten: Forgotten | None = None

    def shape(self) -> list[object]:
        """The options that change what the index holds; no credentials among them."""
        return [self.split, self.image, self.label, list(self.fields)]


class Source(Protocol):
    """The samples of one dataset, read in place. Every method may be called from many threads."""

    index: Index
    remote: bool
    uri: str
    cached_bytes: int | None
    """How many bytes of blocks are held for the next reads; None where samples are read alone."""

    def read(self, positions: Positions) -> list[Buffer]:
        """The image files' bytes; raises `DatasetStale`, `SampleCorrupt`, `Unreachable`."""

    def read_heads(self, positions: Positions, length: int) -> list[Buffer]:
        """The first `length` bytes of each image file, or all of a shorter one."""

    def read_fields(self, positions: Positions) -> dict[str, list[object]]:
        """One list per name in `options.fields`; None where a sample lacks the field."""

    def blocks(self) -> Positions | None:
        """Where runs of samples begin that are read together at no extra cost; None if there are none."""

    def check_deletable(self, keys: Sequence[str]) -> None:
        """Raise `WrongUse` where samples are no files that can be deleted, and `DatasetError` where those of
        these samples may not be, as far as that can be told before."""

    def delete(self, keys: Sequence[str]) -> int:
        """Delete the files of these samples; how many there were. Raises as `check_deletable` does."""

    def close(self) -> None:
        """Let go of descriptors, threads and cached bytes."""
