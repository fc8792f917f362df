"""Labels as columns of numbers: what goes into a label database, and what comes out of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headwater.errors import WrongUse

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

NO_MODEL = 0
"""In the column of models: the label is no model's."""
NOW = 0
"""In the column of times: the moment of the write."""


class Source(IntEnum):
    """Who says so. A human is stronger than an import, and an import than a model."""

    HUMAN = 0
    MODEL = 1
    IMPORT = 2


_DTYPES = {
    "samples": np.int64,
    "labels": np.int32,
    "scores": np.float32,
    "margins": np.float32,
    "sources": np.int8,
    "models": np.int64,
    "times": np.int64,
    "revisions": np.int64,
}


@dataclass(frozen=True, eq=False)
class LabelRows:
    """Labels of some samples, a column each; made by `of`, or read from a database.

    `labels` are places in the dataset's class list; `scores` and `margins` are NaN where there is none;
    `models` are numbers of announced versions (`NO_MODEL`: none); `times` are milliseconds since 1970, UTC;
    `revisions` are those that wrote the rows, 0 in rows that are yet to be written.
    """

    samples: Ints
    labels: NDArray[np.int32]
    scores: Floats
    margins: Floats
    sources: NDArray[np.int8]
    models: Ints
    times: Ints
    revisions: Ints

    @classmethod
    def of(
        cls,
        samples: ArrayLike,
        labels: ArrayLike,
        *,
        source: Source | ArrayLike,
        scores: ArrayLike = np.nan,
        margins: ArrayLike = np.nan,
        model: ArrayLike = NO_MODEL,
        times: ArrayLike = NOW,
    ) -> LabelRows:
        """Rows to write; what is given as one value holds for all of them.

        Raises `WrongUse` for columns of unequal length and for a sample that occurs twice.
        """
        ids = np.asarray(samples, np.int64)
        given = (ids, labels, scores, margins, source, model, times, 0)
        columns = zip(_DTYPES.items(), given, strict=True)
        rows = cls(*(_column(name, values, dtype, len(ids)) for (name, dtype), values in columns))
        rows._check()
        return rows

    def _check(self) -> None:
        check_samples(np.sort(self.samples))
        if len(self) and int(self.labels.min()) < 0:
            raise WrongUse("a label is negative; leave samples without a label out")

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        return f"LabelRows({len(self)} samples)"

    def take(self, places: NDArray[Any] | slice) -> LabelRows:
        """The rows at these places, in this order."""
        return LabelRows(*(column[places] for column in self.columns()))

    def join(self, *others: LabelRows) -> LabelRows:
        """These rows, and those of the others behind them."""
        columns = zip(*(rows.columns() for rows in (self, *others)), strict=True)
        return LabelRows(*(np.concatenate(column) for column in columns))

    def columns(self) -> tuple[NDArray[Any], ...]:
        """All columns in the order of the fields."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def chunk(self) -> int:
        """A number for a write under a key, by its samples: others are another, whatever went before."""
        samples = np.ascontiguousarray(self.samples, "<i8").data
        return int.from_bytes(hashlib.blake2b(samples, digest_size=8).digest(), "little") >> 1

    def parts(self, size: int) -> Iterator[LabelRows]:
        """The rows in order of sample ids, `size` at a time: neighbours lie side by side in a database."""
        ordered = self.take(np.argsort(self.samples))
        for start in range(0, len(self), size):
            yield ordered.take(slice(start, start + size))

    @classmethod
    def fetched(cls, rows: Sequence[Sequence[Any]]) -> LabelRows:
        """From tuples as a database gives them, in the order of the fields; None is NaN."""
        columns = zip(*rows, strict=True) if rows else [()] * len(_DTYPES)
        pairs = zip(columns, _DTYPES.values(), strict=True)
        return cls(*(np.array(column, dtype) for column, dtype in pairs))


def check_samples(ordered: Ints) -> None:
    """Raises `WrongUse` for an id that occurs twice or is none; they are in order."""
    twins = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twins):
        raise WrongUse(f"sample {twins[0]} occurs twice; a write holds each sample once")
    if len(ordered) and ordered[0] < 0:
        raise WrongUse(f"sample id {ordered[0]} is negative; ids have 63 bits")


def _column(name: str, values: ArrayLike, dtype: Any, length: int) -> NDArray[Any]:
    column = np.asarray(values, dtype)
    if column.ndim == 0:
        return np.full(length, column)
    if column.shape != (length,):
        raise WrongUse(f"{name} have shape {column.shape}, there are {length} samples")
    return column
