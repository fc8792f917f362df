"""What a selector may look at: columns with a row per sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.randomness import Draws

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Marks = NDArray[np.bool_]
Turn = Callable[[int], AbstractContextManager[None]]

_STEP = -2  # keys what selection draws; no pipeline has a step of this number

_UNKNOWN: Mapping[str, Any] = MappingProxyType(
    {
        "loss": np.float32(np.nan),
        "smoothed": np.float32(np.nan),
        "peak": np.float32(np.nan),
        "probability": np.float32(np.nan),
        "deviation": np.float32(np.nan),
        "margin": np.float32(np.nan),
        "seconds": np.float32(np.nan),
        "bytes": np.float32(np.nan),
        "seen": np.int32(0),
        "last": np.int32(-1),
        "judged": np.int32(-1),
        "group": np.int32(-1),
        "bucket": np.uint8(0),
    }
)


@dataclass(frozen=True, eq=False)
class Samples:
    """Columns of one length, made by `of`; NaN where nothing is known.

    `loss` is the last one, `smoothed` a running mean, `peak` the largest of the last few; `probability` is
    the target's, `deviation` that of its history; `margin` is the target's probability less the largest other
    one; `seconds` and `bytes` are what a sample takes to load on the plan in force; `seen` counts reports,
    `last` is the epoch of the last one, -1 for none, and `judged` that of the last one that told probability,
    margin and vectors; `group` numbers near-duplicates, -1 for none; `vectors` has a row per sample to tell
    how alike they are. `stalled` is the share of its time that training waits for data. `all_scored` says
    that all samples were scored for this epoch; else scores are those of visits. `state` is what the selector
    itself said an epoch ago. `turn` is what a stretch of a long choice, over so many samples, is done inside
    of; it may raise, to end it.
    """

    ids: Ints
    labels: Ints
    loss: Floats
    smoothed: Floats
    peak: Floats
    probability: Floats
    deviation: Floats
    margin: Floats
    seconds: Floats
    bytes: Floats
    seen: NDArray[np.int32]
    last: NDArray[np.int32]
    judged: NDArray[np.int32]
    group: NDArray[np.int32]
    bucket: NDArray[np.uint8]
    vectors: NDArray[np.floating[Any]] | None = None
    seed: int = 0
    epoch: int = 0
    epochs: int | None = None
    stalled: float = 0.0
    all_scored: bool = False
    state: Mapping[str, Any] = field(default_factory=dict)
    turn: Turn = lambda samples: nullcontext()

    @classmethod
    def of(cls, ids: Ints, labels: Ints, **known: Any) -> Samples:
        """From those columns and facts that there are; what is unknown takes no memory."""
        unknown: dict[str, Any] = {
            name: np.broadcast_to(value, len(ids)) for name, value in _UNKNOWN.items() if name not in known
        }
        return cls(ids, labels, **unknown, **known)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, places: NDArray[np.integer[Any]] | Marks) -> Samples:
        """The same facts of some of them."""
        names = ["ids", "labels", *_UNKNOWN, *(["vectors"] if self.vectors is not None else [])]
        return replace(self, **{name: getattr(self, name)[places] for name in names})

    def draw(self, number: int = 0) -> NDArray[np.float64]:
        """A random float in [0, 1) per sample, of its id, the seed and the epoch alone."""
        return Draws.of(self.ids, seed=self.seed, epoch=self.epoch, step=_STEP).uniform(number)

    @property
    def classes(self) -> NDArray[np.int64]:
        """The labels that there are; samples without one are no class."""
        found = np.unique(self.labels)
        return found[found >= 0]

    @property
    def near_end(self) -> bool:
        """Whether this is one of the last eighth of the epochs, which InfoBatch leaves whole."""
        return self.epochs is not None and self.epoch >= self.epochs - self.epochs // 8


COLUMNS = tuple(one.name for one in fields(Samples) if one.name in _UNKNOWN)
