"""(Placeholder so that others can import `Seen`; the owner of this file overwrites it.)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.pipeline import Pipeline


@dataclass(frozen=True, eq=False)
class Seen:
    """What samples took: columns, one row per sample."""

    positions: NDArray[np.int64]
    ids: NDArray[np.int64]
    epoch: int
    ways: NDArray[np.uint8]
    done: NDArray[np.bool_]
    bytes: NDArray[np.int64]
    store_seconds: NDArray[np.float32]
    trainer_seconds: NDArray[np.float32]
    sizes: NDArray[np.int32]
    file_bytes: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Predicted:
    bytes: NDArray[np.float32]
    store_seconds: NDArray[np.float32]
    trainer_seconds: NDArray[np.float32]


class Profile:
    """Means per way only."""

    def __init__(
        self, pipeline: Pipeline, ways: Sequence[tuple[int, str]], *, samples: int, seed: int
    ) -> None:
        self._n = np.zeros(len(ways), np.int64)
        self._sums = np.zeros((4, len(ways)))

    def add(self, seen: Seen) -> None:
        for way in range(len(self._n)):
            rows = (seen.ways == way) & seen.done
            self._n[way] += rows.sum()
            self._sums[0, way] += seen.bytes[rows].sum()
            self._sums[1, way] += seen.store_seconds[rows].sum()
            self._sums[2, way] += seen.trainer_seconds[rows].sum()
            self._sums[3, way] += seen.file_bytes[rows].sum()

    def counts(self) -> NDArray[np.int64]:
        return self._n.copy()

    def predict(self, positions: Any, ids: Any, file_bytes: Any, *, epoch: int) -> Predicted:
        n = np.maximum(self._n, 1)
        ratio = self._sums[0] / np.maximum(self._sums[3], 1)
        sent = np.asarray(file_bytes, np.float32)[:, None] * ratio[None].astype(np.float32)
        sent[:, self._n < 8] = np.inf
        sent[:, 0] = file_bytes
        shape = (len(ids), len(n))
        store = np.broadcast_to((self._sums[1] / n).astype(np.float32), shape).copy()
        store[:, 0] = 0
        return Predicted(sent, store, np.broadcast_to((self._sums[2] / n).astype(np.float32), shape).copy())

    def to_dict(self) -> dict[str, Any]:
        return {"n": self._n.tolist(), "sums": self._sums.tolist()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], pipeline: Pipeline, *, samples: int, seed: int) -> Profile:
        made = cls(pipeline, [(0, "none")] * len(content["n"]), samples=samples, seed=seed)
        made._n, made._sums = np.array(content["n"]), np.array(content["sums"])
        return made
