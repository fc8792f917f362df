"""What a store is: samples by position, whole or in part, in this process or behind a link."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.data.index import Index
from headwater.engine.chain import Chain
from headwater.engine.fetching import Reader
from headwater.plan.offload import Offload

Positions = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Site:
    """A store as a planner sees it: which of the ways it has, its cores, and what came from it so far.

    `traffic()` gives bytes that came while files were awaited, and for how many seconds they were.
    """

    name: str
    possible: NDArray[np.bool_]
    cores: float
    traffic: Callable[[], tuple[int, float]]


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
    def reader(self, chain: Chain, ways: Sequence[Offload]) -> Reader:
        """What a run with this chain reads from; `ways` are those that a sample can be asked for in."""
        ...

    def compare_steps(self) -> None:
        """Say once which steps the store would make other bytes of, so that they stay here."""
        ...

    def sites(self, chain: Chain, ways: Sequence[Offload]) -> tuple[Site, ...]:
        """The stores beyond a link that can run steps of this chain; none where nothing crosses a link."""
        ...

    def site_of(self, positions: Positions) -> NDArray[np.intp]:
        """Which of the sites has each of these."""
        ...

    def key(self, position: int) -> str: ...
    def blocks(self) -> Positions | None:
        """First positions of the blocks that the data is read in, or None where samples are read alone."""
        ...

    def close(self) -> None: ...
