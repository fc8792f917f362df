"""What the frames of a journal hold.

    HEAD    a `Header` as msgpack; the first frame
    ORIG    weights (float32) that the run ended with that was last trained in full; absent if it is this one
    TARG    the class of the sample of each slot (int32), where it is kept
    MISS    slots that turned out to have no features, int64
    MARK    step (uint64), weights (float32), and velocity (float32) unless it is 0: as they are
            before that step
    STEP    step (uint64), scale (float64), kind of coding (uint64), a rate for each group (float64), gradient
            (float16)
    SEAL    a `Seal` as msgpack; the last frame of a journal that is whole

The gradient is the mean of the batch, without L2. A step whose batch has lost all its samples has kind 2
and no gradient: nothing moved.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.train.replay.coding import CHANGE, WHOLE, Coded

Vector = NDArray[np.float32]

FORMAT = 1
NOTHING = 2
"""The kind of a step in which nothing moved."""
_STEP, _MARK = struct.Struct("<QdQ"), struct.Struct("<Q")
MOST_GROUPS = 1 << 10


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters one after the other that share a learning rate and weight decay."""

    count: int
    decay: float


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a journal was made for, and how its steps are to be read.

    `objective` and `batches` are plain data that make an `Objective` and `Batches` again, `data` the version
    of the features, `ids` those of the slots (int64, -1 for one whose sample is gone). A mark comes before
    every `every` steps. `about` is what whoever wrote it wants to know again.
    """

    objective: dict[str, Any]
    batches: dict[str, Any]
    data: str
    ids: bytes
    groups: tuple[Group, ...]
    momentum: float
    nesterov: bool
    every: int
    about: dict[str, Any] = {}
    format: int = FORMAT

    @property
    def size(self) -> int:
        """How many weights there are."""
        return sum(group.count for group in self.groups)

    @property
    def slots(self) -> NDArray[np.int64]:
        """The sample of each slot."""
        return np.frombuffer(self.ids, "<i8").astype(np.int64)

    def check(self) -> None:
        """Raise `ValueError` for what no journal says of itself."""
        if self.format != FORMAT:
            raise ValueError(f"format {self.format}, this version reads {FORMAT}")
        if not 1 <= len(self.groups) <= MOST_GROUPS or any(group.count < 1 for group in self.groups):
            raise ValueError(f"{len(self.groups)} groups of parameters")
        if len(self.ids) % 8 or self.every < 1 or not 0 <= self.momentum < 1:
            raise ValueError(
                f"{len(self.ids)} bytes of ids, marks every {self.every}, momentum {self.momentum}"
            )


class Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That a journal is whole: how many steps it has, and a digest of the weights that came out.

    `error` is how far these may be from those of a run that was trained in full; 0 for one that was.
    """

    steps: int
    result: str
    error: float = 0.0


@dataclass(frozen=True, eq=False)
class StepRecord:
    """A step as it was: the rate of each group, and the gradient; None where nothing moved."""

    number: int
    rates: NDArray[np.float64]
    coded: Coded | None

    def pack(self) -> tuple[bytes, ...]:
        if self.coded is None:
            return (_STEP.pack(self.number, 1.0, NOTHING), self.rates.tobytes())
        head = _STEP.pack(self.number, self.coded.scale, self.coded.kind)
        return (head, self.rates.astype("<f8").tobytes(), self.coded.values.astype("<f2").tobytes())


def unpack_step(body: memoryview, *, groups: int, size: int) -> StepRecord:
    """Raises `ValueError` for a body that is no step of so many groups and weights."""
    rates = unpack_rates(body, groups=groups)
    number, scale, kind = _STEP.unpack_from(body)
    rest = len(body) - _STEP.size - 8 * groups
    if kind == NOTHING and rest == 0:
        return StepRecord(number, rates, None)
    if kind not in (WHOLE, CHANGE) or rest != 2 * size or not math.isfinite(scale):
        raise ValueError(f"step {number} of kind {kind} with {rest:,} bytes for {size:,} weights")
    return StepRecord(number, rates, Coded(kind, scale, np.frombuffer(body, "<f2", size, len(body) - rest)))


def unpack_rates(body: memoryview, *, groups: int) -> NDArray[np.float64]:
    """The rate of each group in a step; raises `ValueError` for a body that is too short."""
    if len(body) < _STEP.size + 8 * groups:
        raise ValueError(f"a step of {len(body)} bytes")
    return np.frombuffer(body, "<f8", groups, _STEP.size)


def pack_mark(number: int, place: Vector, speed: Vector | None) -> tuple[bytes, ...]:
    """Weights and velocity before a step; a velocity of 0 is left out."""
    speeds = () if speed is None or not speed.any() else (speed.astype("<f4").tobytes(),)
    return (_MARK.pack(number), place.astype("<f4").tobytes(), *speeds)


def unpack_mark(body: memoryview, *, size: int, moving: bool) -> tuple[int, Vector, Vector | None]:
    """Number of the step, weights, and velocity if there is one; raises `ValueError` for another length."""
    here = len(body) - _MARK.size
    if here != 4 * size and not (moving and here == 8 * size):
        raise ValueError(f"a mark of {len(body):,} bytes for {size:,} weights")
    values = np.frombuffer(body, "<f4", offset=_MARK.size).astype(np.float32)
    speed = values[size:] if here > 4 * size else np.zeros(size, np.float32)
    return _MARK.unpack_from(body)[0], values[:size], speed if moving else None
