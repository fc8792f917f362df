"""Images that were made to score samples, held in memory until they are asked for.

A selection for an epoch may be made of what the trainer's own steps will draw in that epoch. Then what was
decoded and cropped to score a sample is what goes out if it is chosen. It is held at the cut that the plan in
force asks for; where that asks for files, or for excerpts of them, nothing is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwater.data.image import Limits
from headwater.data.pipeline import Pipeline
from headwater.data.steps.base import Step
from headwater.store.server.chunk import Done

Ids = NDArray[np.int64]

SHARE = 0.25
"""Of a store's memory, and on top of it: what the crops that are held may have."""
_IDLE_SECONDS = 60.0
_MOST_WISHES = 256  # a client can ask for any steps
_LATELY = 2  # epochs: a selection is made while the epoch before its own goes on


class Way(NamedTuple):
    """How images become what they are at a cut: of which version of a dataset, by which steps and seed."""

    version: str
    steps: tuple[Step, ...]
    offset: int
    seed: int

    @classmethod
    def of(cls, version: str, pipeline: Pipeline, cut: int, seed: int) -> Way:
        return cls(version, pipeline.steps[:cut], pipeline.offset, seed)


class Crop(NamedTuple):
    """An image at a cut, and what is sent with it; `seconds` is the CPU that it took to make."""

    pixels: NDArray[np.uint8]
    source_size: tuple[int, int]
    orientation: int
    drawn: bytes
    seconds: float


@dataclass
class _Held:
    """The crops of one selection, made within `limits`, and when somebody last came for them."""

    limits: Limits
    used: float
    crops: dict[int, Crop] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(_size(crop) for crop in self.crops.values())


class Crops:
    """All that are held, `most_bytes` together. Safe to use from many threads."""

    def __init__(self, most_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most_bytes, clock
        self._lock = threading.Lock()
        self._wishes: dict[Way, tuple[int, int]] = {}  # the last epoch that asked for it, and how many
        self._trays: dict[tuple[Way, int], _Held] = {}
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the pixels that are held."""
        return self._bytes

    def wish(self, way: Way, epoch: int, count: int) -> None:
        """A trainer has asked for so many samples as pixels that are made so."""
        with self._lock:
            last, known = self._wishes.pop(way, (epoch, 0))
            self._wishes[way] = (epoch, count + (known if last == epoch else 0))
            if len(self._wishes) > _MOST_WISHES:
                del self._wishes[next(iter(self._wishes))]

    def open(self, version: str, pipeline: Pipeline, *, seed: int, epoch: int, limits: Limits) -> Tray | None:
        """Where to put what is made for an epoch by the first steps of a pipeline; None if nobody asks."""
        with self._lock:
            asked: dict[int, int] = {}
            for cut in range(1, len(pipeline) + 1):
                last, count = self._wishes.get(Way.of(version, pipeline, cut, seed), (-_LATELY - 1, 0))
                if epoch - _LATELY <= last <= epoch:
                    asked[cut] = count
            if not asked:
                return None
            cut = max(asked, key=lambda cut: (asked[cut], cut))
            way = Way.of(version, pipeline, cut, seed)
            for other, when in list(self._trays):
                if other == way and when < epoch - 1:  # of epochs that are over
                    self._drop((other, when))
            self._trays.setdefault((way, epoch), _Held(limits, self._clock()))
        return Tray(self, way, epoch)

    def put(self, way: Way, epoch: int, ids: Ids, done: Done) -> None:
        """Hold what workers have made of samples, as far as there is room; it is copied."""
        for place, id in enumerate(ids.tolist()):
            payload = done.payloads[place]
            if payload is None:
                continue
            crop = Crop(
                np.frombuffer(bytes(payload), np.uint8).reshape(done.shapes[place].tolist()),
                (int(done.source_sizes[place][0]), int(done.source_sizes[place][1])),
                int(done.orientations[place]),
                done.drawn[place],
                float(done.seconds[place]),
            )
            with self._lock:
                tray = self._trays.get((way, epoch))
                if tray is None or not self._make_room(_size(crop), (way, epoch)):
                    return
                self._remove(tray, id)
                tray.crops[id], tray.used = crop, self._clock()
                self._bytes += _size(crop)

    def keep(self, way: Way, epoch: int, ids: Ids) -> int:
        """Let go of all but these, which were chosen; how many are held."""
        with self._lock:
            tray = self._trays.get((way, epoch))
            if tray is None:
                return 0
            for id in tray.crops.keys() - set(ids.tolist()):
                self._remove(tray, id)
            return len(tray.crops)

    def drop(self, way: Way, epoch: int) -> None:
        """Let go of all that is held for a selection."""
        with self._lock:
            if (way, epoch) in self._trays:
                self._drop((way, epoch))

    def take(
        self, way: Way, epoch: int, ids: Sequence[int], *, limits: Limits | None = None
    ) -> dict[int, Crop]:
        """What is held of these, by id; it is then no longer held: a sample is asked for once an epoch.

        Nothing for one whose `limits` are tighter than those it was made within.
        """
        with self._lock:
            tray = self._trays.get((way, epoch))
            if tray is None or (limits is not None and tray.limits.within(limits) != tray.limits):
                return {}
            tray.used = self._clock()
            found = ((id, self._remove(tray, id)) for id in ids)
            return {id: crop for id, crop in found if crop is not None}

    def forget(self, ids: Ids) -> int:
        """Let go of samples, whatever dataset they are of; how many were held."""
        with self._lock:
            gone = [self._remove(tray, id) for tray in self._trays.values() for id in ids.tolist()]
            return sum(crop is not None for crop in gone)

    def _make_room(self, size: int, but: tuple[Way, int]) -> bool:
        """Others go for it that nobody has come for lately."""
        idle = self._clock() - _IDLE_SECONDS
        while self._bytes + size > self._most:
            others = [key for key, tray in self._trays.items() if key != but and tray.used < idle]
            if not others:
                return False
            self._drop(min(others, key=lambda key: self._trays[key].used))
        return True

    def _remove(self, tray: _Held, id: int) -> Crop | None:
        crop = tray.crops.pop(id, None)
        self._bytes -= 0 if crop is None else _size(crop)
        return crop

    def _drop(self, key: tuple[Way, int]) -> None:
        self._bytes -= self._trays.pop(key).nbytes


def _size(crop: Crop) -> int:
    return crop.pixels.nbytes + len(crop.drawn)


@dataclass(frozen=True)
class Tray:
    """Where the crops of one selection are put."""

    crops: Crops
    way: Way
    epoch: int

    @property
    def cut(self) -> int:
        """How many steps are done at the cut."""
        return len(self.way.steps)

    def put(self, ids: Ids, done: Done) -> None:
        self.crops.put(self.way, self.epoch, ids, done)

    def keep(self, ids: Ids) -> int:
        """Let go of all but these; how many are held."""
        return self.crops.keep(self.way, self.epoch, ids)

    def drop(self) -> None:
        """Let go of all: nobody will ask for them."""
        self.crops.drop(self.way, self.epoch)
