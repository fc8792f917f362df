"""A chunk of samples on its way through a worker: cut to fit the arena, put in, taken out, put together."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.data.buffers import Buffers
from headwater.data.image import Limits
from headwater.data.pipeline import Pipeline
from headwater.errors import WrongUse
from headwater.store.server.arena import FIRST, NOBODY, Arena, align
from headwater.store.server.frames import MADE, WAITING, Job, Reply, pack, unpack

Buffer = Any  # of bytes: bytes, memoryview, an Arrow buffer, an array
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Work:
    """What to do with a chunk: how many of the pipeline's steps for each sample, and then which codec.

    `limits` are those of whoever asks; the workers' own hold as well. `also` are pipelines with the same
    decoder, which make something more of each picture: it is decoded once for all of them.
    """

    pipeline: Pipeline
    seed: int
    epoch: int
    ids: NDArray[np.int64]
    cuts: NDArray[np.uint8]
    codecs: Sequence[str]
    limits: Limits | None = None
    also: tuple[Pipeline, ...] = ()

    def __post_init__(self) -> None:
        if any(other.steps[:1] != self.pipeline.steps[:1] for other in self.also):
            raise WrongUse(f"{self.also} do not begin as {self.pipeline} does; what shares a decode must")
        if not len(self.ids) == len(self.cuts) == len(self.codecs):
            counts = f"{len(self.ids)} ids, {len(self.cuts)} cuts and {len(self.codecs)} codecs"
            raise WrongUse(f"{counts} are not for the same samples")
        if len(self.cuts) and not 1 <= self.cuts.min() <= self.cuts.max() <= len(self.pipeline):
            span = f"{self.cuts.min()} to {self.cuts.max()}"
            raise WrongUse(f"cuts are {span}; a worker runs 1 to {len(self.pipeline)} steps of this pipeline")


@dataclass
class Done:
    """What became of a chunk, in its order.

    A payload is the pixels (uint8, height x width x channels in C order) as the codec packs them, or None:
    damaged, past a cap, too large for the arena, or in `quarantined`. Then the file itself should be sent.
    `source_sizes` are heights and widths of the whole pictures; `drawn` holds what the steps drew, as
    little-endian float64; both are empty where the header could not be read. `seconds` is CPU per
    sample, `cpu_seconds` that of the chunk. `further` has the pixels of each pipeline of `also`, or None for
    those that it could not make.
    """

    payloads: list[memoryview | None]
    shapes: NDArray[np.int32]
    source_sizes: NDArray[np.int32]
    orientations: NDArray[np.uint8]
    seconds: NDArray[np.float32]
    drawn: list[bytes]
    cpu_seconds: float = 0.0
    quarantined: list[int] = field(default_factory=list)
    further: list[list[NDArray[np.uint8] | None]] = field(default_factory=list)


class Chunk:
    """The state of one chunk; `parts` are the places that are still to be run, together as listed."""

    def __init__(self, work: Work, files: Sequence[Buffer], *, arena_bytes: int, buffers: Buffers) -> None:
        if len(files) != len(work.ids):
            raise WrongUse(f"{len(files)} files are not those of {len(work.ids)} ids")
        count = len(files)
        self._work, self._buffers, self._end = work, buffers, arena_bytes
        self.files: list[Bytes] = [np.frombuffer(file, np.uint8) for file in files]
        self._lengths = np.array([len(file) for file in self.files], np.int64)
        self._blamed: set[int] = set()
        self.parts: deque[list[int]] = deque()
        self.done = Done(
            payloads=[None] * count,
            shapes=np.zeros((count, 3), np.int32),
            source_sizes=np.zeros((count, 2), np.int32),
            orientations=np.ones(count, np.uint8),
            seconds=np.zeros(count, np.float32),
            drawn=[b""] * count,
            further=[[None] * count for _ in work.also],
        )

    def divide(self, places: Sequence[int]) -> None:
        """Plan to run these places: their files take at most half of the arena, unless one is larger."""
        part: list[int] = []
        taken = 0
        for place in places:
            length = int(self._lengths[place])
            if FIRST + length >= self._end:
                continue  # it does not fit: its payload stays None
            if part and taken + length > (self._end - FIRST) // 2:
                self.parts.append(part)
                part, taken = [], 0
            part.append(place)
            taken += length
        if part:
            self.parts.append(part)

    def load(self, part: list[int], arena: Arena) -> Job:
        """Put the files of a part into the arena, and say what to do with them."""
        begin = FIRST
        for place in part:
            file = self.files[place]
            arena.bytes[begin : begin + len(file)] = file
            begin += len(file)
        work = self._work
        return Job(
            spec=work.pipeline.spec(),
            offset=work.pipeline.offset,
            seed=work.seed,
            epoch=work.epoch,
            ids=pack(work.ids[part], "<i8"),
            cuts=pack(work.cuts[part], "u1"),
            codecs=[work.codecs[place] for place in part],
            lengths=pack(self._lengths[part], "<i8"),
            room=align(begin),
            limits=work.limits,
            also=[pipeline.cut(1)[1].spec() for pipeline in work.also],
        )

    def unload(self, part: list[int], reply: Reply, arena: Arena) -> None:
        """Take a worker's results; what had no room is planned anew. Raises `ValueError` for nonsense."""
        count = len(part)
        answer = _Answer(reply, count * (1 + len(self._work.also)), arena)
        rows = np.flatnonzero(answer.states == MADE)
        self._check_pixels(part, answer, rows)
        payloads = dict(zip(rows.tolist(), answer.copy(rows, self._buffers), strict=True))
        for row, payload in payloads.items():
            number, place = divmod(row, count)
            if number == 0:
                self.done.payloads[part[place]] = payload
            elif answer.states[place] != WAITING:
                shape = answer.shapes[row].tolist()
                self.done.further[number - 1][part[place]] = np.frombuffer(payload, np.uint8).reshape(shape)
        settled = np.flatnonzero(answer.states[:count] != WAITING)
        waiting = np.flatnonzero(answer.states[:count] == WAITING)
        self._note(part, settled, answer, reply)
        self._replan([part[place] for place in waiting.tolist()], progress=len(settled) > 0)

    def _note(self, part: list[int], settled: NDArray[np.intp], answer: _Answer, reply: Reply) -> None:
        places = np.array(part)[settled]
        self.done.shapes[places] = answer.shapes[settled]
        self.done.source_sizes[places] = answer.sizes[settled]
        self.done.orientations[places] = answer.orientations[settled]
        self.done.seconds[places] = answer.seconds[settled]
        for place, number in zip(places.tolist(), settled.tolist(), strict=True):
            self.done.drawn[place] = reply.drawn[number]
        self.done.cpu_seconds += reply.cpu_seconds

    def _check_pixels(self, part: list[int], answer: _Answer, made: NDArray[np.intp]) -> None:
        """Plain pixels are exactly as many as their shape says."""
        codecs = [self._work.codecs[place] for place in part]  # what was also made is plain
        plain = np.array([row >= len(part) or codecs[row] == "none" for row in made.tolist()], np.bool_)
        # in float64: a product of integers could wrap around to the right number
        wrong = answer.lengths[made] != answer.shapes[made].astype(np.float64).prod(axis=1)
        if (plain & wrong).any():
            raise ValueError("pixels that are not of their own shape")

    def _replan(self, waiting: list[int], *, progress: bool) -> None:
        if progress and waiting:
            self.parts.appendleft(waiting)
        elif len(waiting) > 1:
            # Fewer files leave more room; a single one that has all the room and wants more is given up.
            self._split(waiting)

    def _split(self, part: list[int]) -> None:
        middle = len(part) // 2
        self.parts.extendleft((part[middle:], part[:middle]))

    def blame(self, part: list[int], number: int) -> int | None:
        """Plan what to run again after a crash at sample `number` of a part.

        The suspect runs once more, alone; the place of one that has crashed alone is returned, and is not
        run again. Who crashed before anybody was named is found by halving.
        """
        if not 0 <= number < len(part):
            number = NOBODY if len(part) > 1 else 0
        if number == NOBODY:
            self._split(part)
            return None
        suspect = part[number]
        rest = part[:number] + part[number + 1 :]
        if suspect in self._blamed:
            self.parts.extendleft([rest] if rest else [])
            return suspect
        self._blamed.add(suspect)
        self.parts.extendleft([[suspect], rest] if rest else [[suspect]])
        return None


class _Answer:
    """The columns of a reply, held to what the arena allows."""

    def __init__(self, reply: Reply, count: int, arena: Arena) -> None:
        self._arena = arena
        self.states = unpack(reply.states, "u1", count)
        self.begins, self.lengths = unpack(reply.begins, "<i8", count), unpack(reply.lengths, "<i8", count)
        self.shapes, self.sizes = unpack(reply.shapes, "<i4", count, 3), unpack(reply.sizes, "<i4", count, 2)
        self.orientations = unpack(reply.orientations, "u1", count)
        self.seconds = unpack(reply.seconds, "<f4", count)
        made = self.states == MADE
        begins, lengths = self.begins[made], self.lengths[made]
        # compared without a sum, which could wrap around
        inside = (begins >= FIRST) & (lengths >= 0) & (lengths <= len(arena.bytes) - begins)
        if len(reply.drawn) != count or not inside.all() or (self.shapes[made] < 1).any():
            raise ValueError("results that do not lie in the arena")

    def copy(self, made: NDArray[np.intp], buffers: Buffers) -> list[memoryview]:
        """The payloads, in memory of their own: the arena is used again at once."""
        if not len(made):
            return []
        begins, ends = self.begins[made], self.begins[made] + self.lengths[made]
        first, last = int(begins.min()), int(ends.max())
        copied = buffers.lend(last - first)
        copied[...] = self._arena.bytes[first:last]
        memory = copied.data
        return [memory[begin - first : end - first] for begin, end in zip(begins, ends, strict=True)]
