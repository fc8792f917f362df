"""What training has shown about each sample: columns, one row per sample of the index.

A column takes memory from when something is first known of it, or room on disk if it is large. Ranks exchange
the rows that each has touched; `signalfile` writes and reads a table, with those that are
still to be exchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.index import Index
from headwater.errors import WrongUse
from headwater.measure.mapped import make_column

Floats = NDArray[np.float32]
Positions = NDArray[np.int64]

WINDOW = 5
"""Reports that `losses` remembers of each sample, as NeSSA's watch window does."""
_KEPT = np.float32(0.7)  # of a running mean, when something new comes
_NAN = float("nan")


@dataclass(frozen=True)
class Column:
    """What it holds before anything is known; `width` numbers per sample, 0: as many as first come."""

    dtype: Any
    unknown: float = _NAN
    width: int = 1


COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        "loss": Column(np.float32),
        "smoothed": Column(np.float32),
        "losses": Column(np.float16, width=WINDOW),
        "probability": Column(np.float32),
        "probability_mean": Column(np.float32, 0),
        "probability_spread": Column(np.float32, 0),
        "probability_count": Column(np.int32, 0),
        "margin": Column(np.float32),
        "vectors": Column(np.float16, width=0),
        "seconds": Column(np.float32),
        "bytes": Column(np.float32),
        "seen": Column(np.int32, 0),
        "epoch": Column(np.int32, -1),
        "model": Column(np.int32, -1),
        "logits_epoch": Column(np.int32, -1),
        "logits_model": Column(np.int32, -1),
        "read": Column(np.int32, -1),
        "group": Column(np.int32, -1),
        "bucket": Column(np.uint8, 0),
        "weight": Column(np.float32),
        "chosen": Column(np.float32),
        "stand_in": Column(np.int64, -1),
    }
)
"""`loss` is the last one, `smoothed` a running mean, `losses` the last few; `probability` is the target's,
with mean, sum of squared differences from it and count of those reports that told one; `margin` is that less
the largest other one; `vectors` tell samples apart. `seconds` and `bytes` are what a sample took to load,
lately; `read` is the epoch in which it was last truly read. `epoch` and `model` stamp the last report, and
so `loss`, `smoothed` and `losses`; `logits_epoch` and `logits_model` the last one that told a probability, a
margin or vectors, which a report without any leaves as they are. A model's number grows as the model does.
`group`, `bucket`, `weight`, `chosen` and `stand_in` are what was decided of a sample; a weight is NaN where
it is left out. `chosen` is the weight that stores gave it, before near-duplicates were left out."""

_DECIDED = ("group", "bucket", "weight", "chosen", "stand_in")
_STAMPS = ("epoch", "model", "logits_epoch", "logits_model")
_OF_A_RUN = (*_STAMPS, "read", *_DECIDED)
_MODELS = "models"

EXCHANGED = tuple(name for name in COLUMNS if name not in _DECIDED)
"""What ranks see differently until they tell each other; the rest all compute alike."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a table."""

    positions: Positions
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class Signals:
    """Columns of `COLUMNS`, each as an attribute. Written by the training loop's thread only.

    With a `folder`, large columns lie in files there that nobody sees, and the system holds what it has
    memory for.
    """

    def __init__(self, index: Index, *, folder: Path | None = None) -> None:
        self._index, self._folder = index, folder
        self._columns: dict[str, NDArray[Any]] = {}
        self.touched: NDArray[np.bool_] | None = None
        """Which rows were written to since ranks last told each other; None: none."""
        self.notes: dict[str, Any] = {}
        """Plain data that is saved along."""

    def __getattr__(self, name: str) -> NDArray[Any]:
        if name not in COLUMNS:
            raise AttributeError(f"signals have no column {name!r}; there are {', '.join(COLUMNS)}")
        return self.column(name)

    def column(self, name: str, *, width: int = 1) -> NDArray[Any]:
        """The column; a new one knows nothing."""
        if name not in self._columns:
            kind = COLUMNS[name]
            shape = (len(self._index), *([kind.width or width] if kind.width != 1 else []))
            self._columns[name] = make_column(shape, kind.dtype, kind.unknown, folder=self._folder)
        return self._columns[name]

    def has(self, name: str) -> bool:
        """Whether anything was ever told of a column."""
        return name in self._columns

    @property
    def nbytes(self) -> int:
        """Bytes of the columns that there are."""
        return sum(int(column.nbytes) for column in self._columns.values())

    def record(
        self,
        ids: Positions,
        loss: Floats,
        *,
        epoch: int,
        model: int = -1,
        probability: Floats | None = None,
        margin: Floats | None = None,
        vectors: NDArray[np.floating[Any]] | None = None,
    ) -> None:
        """Note what one batch has shown; a sample that comes twice in it counts once, as the last of them.

        Unless `model` numbers the version that has shown it, it is the run's own network as of the epoch, and
        has the epoch's number.
        """
        if loss.shape != ids.shape:
            raise WrongUse(
                f"loss has shape {loss.shape} for {len(ids)} samples; compute it with reduction='none'"
            )
        last = _last_of_each(ids)
        at = self._index.position_of(ids[last])
        self._note_loss(at, loss[last])
        if probability is not None:
            self._note_probability(at, probability[last])
        if margin is not None:
            self.margin[at] = margin[last]
        if vectors is not None:
            self.column("vectors", width=vectors.shape[1])[at] = vectors[last]
        self.seen[at] += 1
        version = epoch if model < 0 else model
        self.epoch[at], self.model[at] = epoch, version
        if not (probability is None and margin is None and vectors is None):
            self.logits_epoch[at], self.logits_model[at] = epoch, version
        self._touch(at)

    def number_model(self, digest: str) -> int:
        """What stamps reports of a version that has a digest: its place among those that were named here."""
        named: list[str] = self.notes.setdefault(_MODELS, [])
        if digest not in named:
            named.append(digest)
        return named.index(digest)

    def note_load(self, at: Positions, *, seconds: Floats, bytes: Floats, epoch: int) -> None:
        """What samples at these positions took to come here just now."""
        for name, values in (("seconds", seconds), ("bytes", bytes)):
            column = self.column(name)
            column[at] = _blend(column[at], values)
        self.read[at] = epoch
        self._touch(at)

    def _note_loss(self, at: Positions, loss: Floats) -> None:
        self.smoothed[at] = _blend(self.smoothed[at], loss)
        with np.errstate(over="ignore"):  # past half precision a loss is infinite, which is as large
            self.losses[at, self.seen[at] % WINDOW] = loss
        self.loss[at] = loss

    def _note_probability(self, at: Positions, probability: Floats) -> None:
        """Mean and spread as Welford has them, without a history; what is no number changes neither."""
        self.probability[at] = probability
        told = np.isfinite(probability)
        at, probability = at[told], probability[told]
        self.probability_count[at] += 1
        before = probability - self.probability_mean[at]
        self.probability_mean[at] += before / self.probability_count[at].astype(np.float32)
        self.probability_spread[at] += before * (probability - self.probability_mean[at])

    @property
    def peak(self) -> Floats:
        """The largest of the last few losses; NaN for samples without one."""
        if not self.has("losses"):
            return np.broadcast_to(np.float32(_NAN), len(self._index))
        largest: Floats = np.fmax.reduce(self.losses, axis=1).astype(np.float32)
        return largest

    @property
    def deviation(self) -> Floats:
        """The standard deviation of the target's probability; NaN where it was not told twice."""
        if not self.has("probability_spread"):
            return np.broadcast_to(np.float32(_NAN), len(self._index))
        count = self.probability_count
        with np.errstate(invalid="ignore", divide="ignore"):
            spread = np.sqrt(self.probability_spread / (count - 1))
        return np.where(count > 1, spread, np.float32(_NAN)).astype(np.float32)

    def _touch(self, at: Positions) -> None:
        if self.touched is None:
            self.touched = np.zeros(len(self._index), np.bool_)
        self.touched[at] = True

    def take_touched(self) -> Rows:
        """The rows that were written to since this was last asked, as other ranks need them."""
        if self.touched is None:
            return Rows(np.empty(0, np.int64))
        at = np.flatnonzero(self.touched)
        self.touched = None
        return Rows(at, {name: self._columns[name][at] for name in EXCHANGED if self.has(name)})

    def put(self, rows: Iterable[Rows]) -> None:
        """Take rows over from other ranks, the later over the earlier."""
        for some in rows:
            for name, values in some.columns.items():
                width = values.shape[1] if values.ndim > 1 else 1
                self.column(name, width=width)[some.positions] = values

    def renew(self) -> None:
        """Keep what is known of samples for another run, without stamps, decisions and notes of the last."""
        for name in _OF_A_RUN:
            self._columns.pop(name, None)
        self.touched, self.notes = None, {}

    def columns(self) -> Mapping[str, NDArray[Any]]:
        """Those that there are, by name."""
        return dict(self._columns)


def _blend(old: NDArray[Any], new: Floats) -> Floats:
    """A running mean, which begins with what comes first, and anew after what was no finite number."""
    new = np.asarray(new, np.float32)
    with np.errstate(invalid="ignore"):
        blended = _KEPT * old + (1 - _KEPT) * new
    return np.where(np.isfinite(old), blended, new).astype(np.float32)


def _last_of_each(ids: Positions) -> NDArray[np.intp]:
    """Where each id comes last, in order."""
    _, first = np.unique(ids[::-1], return_index=True)
    return np.sort(len(ids) - 1 - first)
