"""The store in this process: files as they lie on disk or in a bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.index import Index
from headwater.data.sources import Source
from headwater.engine.chain import Chain
from headwater.engine.fetching import Fetched, Reader, Wanted, fetch_files
from headwater.plan.offload import Offload
from headwater.store.base import Site

_LOCAL_READERS = 4
_REMOTE_READERS = 16


class LocalStore:
    """Serves the samples of one source. Safe to use from many threads."""

    remote = False

    def __init__(self, source: Source, fields: Sequence[str] = ()) -> None:
        """`fields` are those that the source was opened with."""
        self.source = source
        self.fields = tuple(fields)

    @property
    def index(self) -> Index:
        return self.source.index

    @property
    def uri(self) -> str:
        return self.source.uri

    @property
    def readers(self) -> int:
        """Threads that reading deserves: more where every read waits for a network."""
        return _REMOTE_READERS if self.source.remote else _LOCAL_READERS

    def sizes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of these image files; 0 where the index only knows the mean of many."""
        return self.index.sizes[positions] if self.index.exact_sizes else np.zeros(len(positions), np.int64)

    def read(self, positions: NDArray[np.int64]) -> Sequence[Any]:
        """The image files at these positions, as bytes."""
        return self.source.read(positions)

    def read_fields(self, positions: NDArray[np.int64]) -> Mapping[str, Sequence[object]]:
        """The further fields that the dataset was opened with."""
        return self.source.read_fields(positions)

    def read_heads(self, positions: NDArray[np.int64], length: int) -> Sequence[Any]:
        """The first `length` bytes of these image files."""
        return self.source.read_heads(positions, length)

    def reader(self, chain: Chain, ways: Sequence[Offload]) -> Reader:
        """What a run reads from. Nothing crosses a link here, so there is nothing to offload."""
        return self

    def compare_steps(self) -> None:
        """There is no other side."""

    def sites(self, chain: Chain, ways: Sequence[Offload]) -> tuple[Site, ...]:
        return ()

    def site_of(self, positions: NDArray[np.int64]) -> NDArray[np.intp]:
        return np.zeros(len(positions), np.intp)

    def fetch(self, wanted: Wanted) -> Fetched:
        return fetch_files(self, wanted.positions)

    def abandon(self) -> None:
        """A read of this machine's files ends by itself."""

    def key(self, position: int) -> str:
        return self.index.key(position)

    @property
    def cached_bytes(self) -> int | None:
        """How many bytes of blocks are held for the next reads; None where samples are read alone."""
        return self.source.cached_bytes

    def blocks(self) -> NDArray[np.int64] | None:
        """First positions of the blocks that the data is read in, or None where samples are read alone."""
        return self.source.blocks()

    def close(self) -> None:
        self.source.close()
