"""Writing a journal, step by step, to a file that only grows.

Whoever is killed meanwhile leaves a journal without a seal. Its whole steps are known, and a writer that is
given their number goes on after them; a reader refuses it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.data.atomic import sync_folder
from headwater.errors import JournalRefused, ModelError, WrongUse
from headwater.train.replay.batches import Slots
from headwater.train.replay.coding import encode
from headwater.train.replay.frames import FrameWriter
from headwater.train.replay.reading import JournalFile, digest_weights
from headwater.train.replay.records import Header, Seal, StepRecord, pack_mark
from headwater.train.replay.straying import find_stray

Vector = NDArray[np.float32]


class JournalWriter:
    """Appends steps; `seal` makes it a journal. Leaving the context before leaves one that is cut short.

    Raises `WrongUse` where a file is in the way, `ModelError` where it cannot be written, as on a full disk.
    """

    _broken = False

    def __init__(self, path: str | os.PathLike[str], header: Header) -> None:
        header.check()
        self.path, self.header, self.steps = Path(path), header, 0
        self._before: Vector | None = None
        try:
            self._file: BinaryIO = self.path.open("xb")
        except FileExistsError:
            raise WrongUse(f"{self.path} is there already; name another file, or delete that one") from None
        except OSError as error:
            raise ModelError(f"cannot write {self.path}: {error.strerror}; name another place") from error
        try:
            with told(self.path):
                self._frames = FrameWriter(self._file)
                self._frames.put("HEAD", msgspec.msgpack.encode(header))
        except ModelError:
            self.discard()
            raise

    @classmethod
    def resume(cls, path: str | os.PathLike[str], header: Header, *, steps: int) -> JournalWriter:
        """Go on after so many steps of one that was not sealed; what comes after them is cut off.

        Raises `JournalRefused` for a journal with another header, or with fewer whole steps.
        """
        found = JournalFile(path)
        if found.header != header or len(found) < steps:
            raise JournalRefused(
                f"{found.path} has {len(found):,} whole steps, and is not that of the run that goes on after "
                f"{steps:,}; delete it and train again"
            )
        self = cls.__new__(cls)
        self.path, self.header, self.steps = found.path, header, steps
        last, self._before = found.cut_after(steps)
        self._file = found.path.open("r+b")
        self._file.truncate(last.end)
        self._file.seek(last.end)
        self._frames = FrameWriter(self._file, last)
        return self

    def derive(self, origin: Vector) -> None:
        """Say that the run is followed from one that ended with these weights."""
        self._put("ORIG", origin.astype("<f4").tobytes())

    def target(self, targets: Slots) -> None:
        """Keep the class of the sample of each slot, for who will have features again, but no labels."""
        self._put("TARG", targets.astype("<i4").tobytes())

    def miss(self, slots: Slots) -> None:
        """These slots have no features, and are in no batch from now on."""
        if len(slots):
            self._put("MISS", slots.astype("<i8").tobytes())

    @property
    def wants_mark(self) -> bool:
        """Whether `mark` is to be called before the next step."""
        return self.steps % self.header.every == 0

    def mark(self, place: Vector, speed: Vector | None) -> None:
        """Weights and velocity before the next step, or after the last."""
        self._put("MARK", *pack_mark(self.steps, place, speed))
        # Whoever begins to read here has no gradient of before.
        self._before = None

    def step(self, gradient: Vector | None, rates: NDArray[np.float64]) -> None:
        """One step: the mean gradient, None if nothing moved, and a rate for each group."""
        if gradient is not None and not np.isfinite(gradient).all():
            raise ModelError(
                f"step {self.steps:,} has a gradient that is no number; training ran away, lower its rate"
            )
        coded = None if gradient is None else encode(gradient, self._before)
        self._put("STEP", *StepRecord(self.steps, np.asarray(rates, np.float64), coded).pack())
        self._before = None if coded is None else coded.decode(self._before)
        self.steps += 1

    def check(self, place: Vector) -> None:
        """Raise `WrongUse` unless the steps lead from each mark to the next, and to these weights at last."""
        self.flush()
        strayed = find_stray(JournalFile(self.path), place)
        if strayed:
            raise WrongUse(
                f"{strayed}: something else than the optimiser moved them, or its momentum was changed; "
                "leave both to the optimiser from the first step until the journal is sealed"
            )

    def flush(self) -> None:
        """What was written so far can be read."""
        with self._told():
            self._file.flush()

    def seal(self, place: Vector, speed: Vector | None, *, error: float = 0.0) -> None:
        """Say that the run is over, and where the weights are then; on disk when this returns.

        `error` is how far these may be from those of a run that was trained in full.
        """
        self.mark(place, speed)
        seal = Seal(self.steps, digest_weights(place), error)
        self._put("SEAL", msgspec.msgpack.encode(seal))
        self.sync()
        self._file.close()
        with self._told():
            sync_folder(self.path.resolve().parent)

    def sync(self) -> None:
        """What was written so far survives a loss of power."""
        with self._told():
            self._frames.sync()

    @property
    def broken(self) -> bool:
        """Whether something could not be written: then the file has no more than what came before."""
        return self._broken

    def close(self) -> None:
        """Stop; without a seal it is no journal."""
        # What cannot be written now is of a journal that nobody can read anyway.
        with suppress(OSError):
            self._file.close()

    def discard(self) -> None:
        """Stop, and take the file away."""
        self.close()
        with suppress(FileNotFoundError):
            self.path.unlink()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _put(self, kind: str, *pieces: bytes) -> None:
        with self._told():
            self._frames.put(kind, *pieces)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            with told(self.path):
                yield
        except ModelError:
            self._broken = True
            raise


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Name the file that cannot be written. What is put waits in a buffer, so any later call may find out."""
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"cannot write {path}: {error.strerror}; make room, or name another place"
        ) from error
