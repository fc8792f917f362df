"""Sums over the samples of a run, by the way on which they came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from headwater.measure.profile import Seen

Files = NDArray[np.floating[Any]]
"""Lengths of files, told or estimated."""

_EDGES = np.geomspace(1e5, 1e10, 51)
"""Ten to a decade: from 100 kB to 10 GB saved per store second."""


class WayTotals(Struct):
    """All samples of one way; one that the store pushed back was asked for here and came as the file.

    All but `asked` is of samples that came this way. `predicted_bytes` and `foreseen_bytes` are what was
    expected and what came of those for which there was a prediction. Of `file_bytes`, those of `estimated`
    samples are estimates.
    """

    asked: int = 0
    done: int = 0
    bytes: int = 0
    file_bytes: int = 0
    store_seconds: float = 0.0
    trainer_seconds: float = 0.0
    predicted_bytes: float = 0.0
    foreseen_bytes: int = 0
    estimated: int = 0


class Histogram(Struct):
    """How many values fell between edges; the first and the last count are of those outside of all."""

    edges: list[float] = field(default_factory=_EDGES.tolist)
    counts: list[int] = field(default_factory=lambda: [0] * (len(_EDGES) + 1))

    def add(self, values: NDArray[np.float64]) -> None:
        places = np.searchsorted(self.edges, values, side="right")
        found = np.bincount(places, minlength=len(self.counts))
        self.counts = (np.array(self.counts) + found).tolist()


def add_up(
    totals: Sequence[WayTotals],
    seen: Seen,
    predicted: NDArray[np.floating[Any]] | None = None,
    *,
    files: Files | None = None,
) -> None:
    """Add samples to the totals; `predicted` bytes are not finite where nothing was expected.

    Files whose size is not known are as long as `files` says; without it as long as what came, so that no
    saving is claimed.
    """
    came = np.where(seen.done, seen.ways, 0)
    lengths, estimated = _file_bytes(seen, files)
    expected = np.full(len(came), np.nan) if predicted is None else np.asarray(predicted, np.float64)
    foreseen = seen.done & np.isfinite(expected)
    size = len(totals)
    sums = {
        "asked": np.bincount(seen.ways, minlength=size),
        "done": np.bincount(came, minlength=size),
        "bytes": np.bincount(came, seen.bytes, size),
        "file_bytes": np.bincount(came, np.where(lengths > 0, lengths, seen.bytes), size),
        "estimated": np.bincount(came[estimated], minlength=size),
        "store_seconds": np.bincount(came, seen.store_seconds, size),
        "trainer_seconds": np.bincount(came, seen.trainer_seconds, size),
        "predicted_bytes": np.bincount(came[foreseen], expected[foreseen], size),
        "foreseen_bytes": np.bincount(came[foreseen], seen.bytes[foreseen], size),
    }
    for name, column in sums.items():
        for total, amount in zip(totals, column.tolist(), strict=True):
            before = getattr(total, name)
            setattr(total, name, before + type(before)(amount))


def efficiencies(seen: Seen, files: Files | None = None) -> NDArray[np.float64]:
    """Bytes saved per store second of each sample that was offloaded and whose file's size can be told."""
    lengths, _ = _file_bytes(seen, files)
    offloaded = seen.done & (seen.ways > 0) & (seen.store_seconds > 0) & (lengths > 0)
    saved = (lengths - seen.bytes)[offloaded]
    return saved / seen.store_seconds[offloaded].astype(np.float64)


def _file_bytes(seen: Seen, files: Files | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Lengths of the files, 0 where nothing tells, and which are taken from `files`.

    What came as a file tells its own.
    """
    told = np.where(seen.done & (seen.ways > 0), seen.file_bytes, seen.bytes).astype(np.float64)
    if files is None:
        return told, np.zeros(len(told), np.bool_)
    return np.where(told > 0, told, files), told == 0
