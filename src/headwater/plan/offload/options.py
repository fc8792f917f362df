"""What can be done with each sample at the store, and what each of these ways costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.errors import WrongUse
from headwater.plan.offload.uniform import Offload

Floats = NDArray[np.float32] | NDArray[np.float64]
BLOCK = 1 << 14
"""Samples that are looked at together: temporaries stay in a CPU's cache, however many samples there are."""


@dataclass(frozen=True, eq=False)
class Options:
    """Ways to send a sample, the same list for all; a row per sample, a column per way, all of one visit.

    `store_seconds` and `trainer_seconds` are CPU seconds of one core. Column 0 is the file as it is, with no
    work at the store. Infinite `bytes` mark a way that a sample does not have; its seconds are not read.
    """

    ways: tuple[Offload, ...]
    bytes: Floats
    store_seconds: Floats
    trainer_seconds: Floats

    def __post_init__(self) -> None:
        _check_ways(self.ways)
        for name, column in self._columns().items():
            _check_column(name, column, (len(self.bytes), len(self.ways)))
        for rows in self.blocks():
            self._check_rows(rows)

    def __len__(self) -> int:
        return len(self.bytes)

    def take(self, rows: NDArray[np.intp] | slice) -> Options:
        """Some of the samples."""
        columns = (self.bytes, self.store_seconds, self.trainer_seconds)
        return Options(self.ways, *(column[rows] for column in columns))

    def blocks(self) -> Iterator[slice]:
        """All samples, some at a time."""
        for start in range(0, len(self), BLOCK):
            yield slice(start, min(start + BLOCK, len(self)))

    def has(self, way: int, rows: slice) -> NDArray[np.bool_]:
        """Which of these samples can go this way."""
        return np.isfinite(self.bytes[rows, way])

    def plain(self) -> list[int]:
        """Ways without a codec, by the number of steps at the store: what published systems choose from."""
        found = [place for place, way in enumerate(self.ways) if way.codec == "none"]
        return sorted(found, key=lambda place: self.ways[place].cut)

    def place_of(self, way: Offload) -> int:
        """The column of a way."""
        if way not in self.ways:
            raise WrongUse(f"{_text(way)} is not among the options; there are {_texts(self.ways)}")
        return self.ways.index(way)

    def _columns(self) -> dict[str, Floats]:
        return {
            "bytes": self.bytes,
            "store_seconds": self.store_seconds,
            "trainer_seconds": self.trainer_seconds,
        }

    def _check_rows(self, rows: slice) -> None:
        absent = np.isposinf(self.bytes[rows])
        for name, column in self._columns().items():
            _check_values(name, column[rows], rows.start, absent)
        _check_raw("bytes", absent[:, 0], rows.start, "must be finite")
        _check_raw("store_seconds", self.store_seconds[rows, 0] != 0, rows.start, "must be 0")


def _check_ways(ways: tuple[Offload, ...]) -> None:
    if not ways or ways[0] != Offload(0):
        raise WrongUse(
            f"the options are {_texts(ways)}; the first must be the file as it is, {_text(Offload(0))}"
        )
    if len(ways) > 256:
        raise WrongUse(f"there are {len(ways)} options; a plan holds at most 256")
    if len(set(ways)) != len(ways):
        raise WrongUse(f"the options are {_texts(ways)}; name each once")


def _check_column(name: str, column: Floats, shape: tuple[int, int]) -> None:
    if column.dtype not in (np.float32, np.float64):
        raise WrongUse(f"{name} is of type {column.dtype}; give float32 or float64")
    if column.shape != shape:
        raise WrongUse(f"{name} has the shape {column.shape}; {shape} (samples, options) is needed")


def _check_values(name: str, values: Floats, start: int, absent: NDArray[np.bool_]) -> None:
    wrong = ~(np.isfinite(values) & (values >= 0)) & ~absent
    if wrong.any():
        row, way = (int(place) for place in np.argwhere(wrong)[0])
        raise WrongUse(
            f"{name} of sample {start + row}, option {way}, is {values[row, way]}; it must be finite and at "
            f"least 0 (infinite bytes mark an option that a sample does not have)"
        )


def _check_raw(name: str, wrong: NDArray[np.bool_], start: int, remedy: str) -> None:
    if wrong.any():
        row = start + int(np.flatnonzero(wrong)[0])
        raise WrongUse(f"{name} of option 0 {remedy}, as it is the file itself; sample {row} breaks that")


def _text(way: Offload) -> str:
    return f"cut {way.cut}" + ("" if way.codec == "none" else f" + {way.codec}")


def _texts(ways: tuple[Offload, ...]) -> str:
    return ", ".join(_text(way) for way in ways) or "none at all"
