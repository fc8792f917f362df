"""What a store is: samples by position, whole or in part, in this process or behind a link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.data.index import Index
from headwater.engine.chain import Chain
from headwater.engine.fetching import Reader
from headwater.plan.offload import Offload

Positions = NDArray[np.int64]


class Store(Protocol):
    """Serves the samples of one dataset. Every method may be called from many threads."""

    @property
    def index(self) -> Index: ...
    @property
    def uri(self) -> str: ...
    @property
    def remote(self) -> bool:
        """Whether reading waits for another machine that may not answer."""
        ...

    @property
    def readers(self) -> int:
        """Threads that reading deserves."""
        ...

    @property
    def cached_bytes(self) -> int | None:
        """How many bytes of blocks are held for the next reads; None where samples are read alone."""
        ...

    def sizes(self, positions: Positions) -> NDArray[np.int64]:
        """Bytes of these image files; 0 where the index only knows the mean of many."""
        ...

    def read(self, positions: Positions) -> Sequence[Any]: ...
    def read_heads(self, positions: Positions, length: int) -> Sequence[Any]: ...
    def read_fields(self, positions: Positions) -> Mapping[str, Sequence[object]]: ...
    def reader(self, chain: Chain, offload: Offload | None) -> Reader:
        """What a run with this chain reads from; `offload` says what the store should do of it."""
        ...

    def key(self, position: int) -> str: ...
    def blocks(self) -> Positions | None:
        """First positions of the blocks that the data is read in, or None where samples are read alone."""
        ...

    def close(self) -> None: ...
