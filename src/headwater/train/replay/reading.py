"""Reading a journal's file: mapped into memory, every check made before anything is believed."""

from __future__ import annotations

import hashlib
import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.errors import JournalRefused
from headwater.train.replay.batches import NO_SLOTS, Slots
from headwater.train.replay.frames import MAGIC, Frame, find_frames
from headwater.train.replay.records import Header, Seal, unpack_mark, unpack_rates, unpack_step

Vector = NDArray[np.float32]
T = TypeVar("T")

_AGAIN = "train again, or bring a whole copy"


@dataclass(frozen=True, eq=False)
class Moment:
    """A step of the recorded run: its mean gradient, None if nothing moved, and a rate for each group."""

    number: int
    gradient: Vector | None
    rates: NDArray[np.float64]


class JournalFile:
    """The whole frames of a file, from the first on. Raises `JournalRefused` for a file of something else."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._content = _map(self.path)
        if bytes(self._content[: len(MAGIC)]) != MAGIC:
            raise JournalRefused(f"{self.path} is no journal; name a file that `hw.Journal` has written")
        self._frames = list(find_frames(self._content))
        if not self._frames or self._frames[0].kind != "HEAD":
            raise JournalRefused(f"{self.path} is cut short or damaged within its header; {_AGAIN}")
        self.header = self._read(self._frames[0], Header)
        with self._doubt():
            self.header.check()
        self._steps, self._marks = self._all("STEP"), self._all("MARK")
        self._begins = [self._number(frame) for frame in self._marks]

    def __len__(self) -> int:
        """How many whole steps there are."""
        return len(self._steps)

    @property
    def nbytes(self) -> int:
        return len(self._content)

    @cached_property
    def seal(self) -> Seal:
        """Raises `JournalRefused` for a journal that is cut short, damaged, or altered."""
        last = self._frames[-1]
        left = len(self._content) - last.end
        if last.kind != "SEAL":
            how = f"{left:,} bytes after them are cut short or damaged" if left else "it was never sealed"
            raise JournalRefused(
                f"{self.path} is cut short: it has {len(self):,} whole steps, and {how}; {_AGAIN}"
            )
        found = self._read(last, Seal)
        numbers = [self._number(frame) for frame in self._steps]
        if left or found.steps != len(self) or numbers != list(range(len(self))):
            raise JournalRefused(
                f"{self.path} is sealed with {found.steps:,} steps, has {len(self):,}, and {left:,} bytes "
                f"after the seal: it was altered; {_AGAIN}"
            )
        marks = {*range(0, len(self), self.header.every), len(self)}
        if set(self._begins) != marks:
            raise JournalRefused(
                f"{self.path} lacks weights that its steps begin with: it was altered; {_AGAIN}"
            )
        return found

    @cached_property
    def missing(self) -> Slots:
        """Slots that never had features."""
        parts = [np.frombuffer(self._body(frame), "<i8") for frame in self._all("MISS")]
        return np.unique(np.concatenate(parts)).astype(np.int64) if parts else NO_SLOTS

    @cached_property
    def targets(self) -> NDArray[np.int64] | None:
        """The class of the sample of each slot, -1 where there is none any more; None if that is not kept."""
        frames = self._all("TARG")
        if not frames:
            return None
        with self._doubt():
            values = np.frombuffer(self._body(frames[0]), "<i4").astype(np.int64)
            if len(values) != len(self.header.slots):
                raise ValueError(f"{len(values):,} targets of {len(self.header.slots):,} slots")
        return values

    @cached_property
    def origin(self) -> Vector | None:
        """The weights that a run ended with that was trained in full; None if it is this one."""
        frames = self._all("ORIG")
        if not frames:
            return None
        with self._doubt():
            values = np.frombuffer(self._body(frames[0]), "<f4").astype(np.float32)
            if len(values) != self.header.size:
                raise ValueError(f"{len(values):,} weights of an earlier run for {self.header.size:,}")
        return values

    def mark_before(self, step: int) -> tuple[int, Vector, Vector | None]:
        """The last mark that is not after a step: of which step, weights, velocity."""
        frame = self._marks[bisect_right(self._begins, step) - 1]
        with self._doubt():
            header = self.header
            return unpack_mark(self._body(frame), size=header.size, moving=header.momentum > 0)

    def moments(self, begin: int) -> Iterator[Moment]:
        """The steps from this one on, at which a mark must be."""
        before: Vector | None = None
        marks, size, groups = set(self._begins), self.header.size, len(self.header.groups)
        with self._doubt():
            for number in range(begin, len(self)):
                record = unpack_step(self._body(self._steps[number]), groups=groups, size=size)
                coded = record.coded
                before = None if coded is None else coded.decode(None if number in marks else before)
                yield Moment(number, before, record.rates)

    def rates(self, begin: int) -> Iterator[NDArray[np.float64]]:
        """The learning rates of the steps from this one on."""
        groups = len(self.header.groups)
        with self._doubt():
            for frame in self._steps[begin:]:
                yield unpack_rates(self._body(frame), groups=groups)

    def cut_after(self, steps: int) -> tuple[Frame, Vector | None]:
        """The last frame that belongs to the first so many steps, and the gradient of the last of these."""
        end = self._steps[steps - 1].end if steps else self._frames[0].end
        last = next(frame for frame in self._frames if frame.end == end)
        begin = self.mark_before(max(steps - 1, 0))[0] if steps else 0
        gradient = None
        for moment in self.moments(begin):
            if moment.number >= steps:
                break
            gradient = moment.gradient
        return last, gradient

    def _all(self, kind: str) -> list[Frame]:
        return [frame for frame in self._frames if frame.kind == kind]

    def _body(self, frame: Frame) -> memoryview:
        return self._content[frame.begin : frame.end]

    def _number(self, frame: Frame) -> int:
        """Steps and marks begin with the number of their step."""
        return int.from_bytes(self._body(frame)[:8], "little")

    def _read(self, frame: Frame, kind: type[T]) -> T:
        with self._doubt():
            return msgspec.msgpack.decode(self._body(frame), type=kind)

    @contextmanager
    def _doubt(self) -> Iterator[None]:
        """Name the file in what is wrong with its content."""
        try:
            yield
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise JournalRefused(f"{self.path} cannot be read: {error}; {_AGAIN}") from error


def digest_weights(weights: Vector) -> str:
    """By which the weights that a run ended with are known."""
    return hashlib.blake2b(weights.astype("<f4").tobytes(), digest_size=16).hexdigest()


def _map(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            # A file without bytes cannot be mapped.
            empty = not os.fstat(file.fileno()).st_size
            return memoryview(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise JournalRefused(f"cannot read {path}: {error.strerror}; check the path") from error
