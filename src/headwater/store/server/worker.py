"""The program that runs steps beside the data: bytes in, bytes out, and no credentials.

It is started by the daemon with a socket and an arena as its only open files. It knows steps by their names
in the catalogue; whatever crashes it costs the daemon one restart.
"""

from __future__ import annotations

import ctypes
import faulthandler
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain as concatenated

import numpy as np
from numpy.typing import NDArray

from headwater.data import steps
from headwater.data.codecs import encode
from headwater.data.codecs import load as load_codec
from headwater.data.codecs.excerpts import EXCERPTS
from headwater.data.image import MODES, Header, Limits
from headwater.data.image.excerpt import excerpt
from headwater.data.pipeline import Pipeline
from headwater.data.steps.base import Image, Row, Step
from headwater.data.steps.decode import Decode
from headwater.data.steps.tensors import torch_module
from headwater.engine.chain import Chain
from headwater.errors import SampleCorrupt
from headwater.store.server.arena import FIRST, LOADING, NOBODY, Arena, align
from headwater.store.server.frames import (
    FAILED,
    MADE,
    WAITING,
    Answer,
    Fault,
    Hello,
    Job,
    Reply,
    Setup,
    pack,
    receive,
    send,
    unpack,
)
from headwater.store.wire.catalogue import LIBRARIES, digests

_SET_PARENT_DEATH_SIGNAL = 1
_MOST_MEMORY = 1 << 30  # bytes for Python, torch and small pictures
_PIXEL_MEMORY = 48  # bytes for each pixel of the largest picture: it, what is made of it, and codecs' own
_MOST_WRITTEN = 1 << 20  # bytes of any file, and so of what it can say on stderr


class _NoRoom(Exception):
    """The arena is full; what is not made yet waits for the next job."""


class _Output:
    """What becomes of a job's samples, in columns, and the free rest of the arena."""

    def __init__(self, arena: Arena, job: Job, count: int) -> None:
        """`count` rows; those behind the job's samples are for what is also made of them."""
        self.arena, self._free, self.samples = arena, job.room, len(job.codecs)
        self._codecs = job.codecs + ["none"] * (count - len(job.codecs))
        self.states = np.full(count, WAITING, np.uint8)
        self.begins, self.lengths = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.shapes, self.sizes = np.zeros((count, 3), np.int32), np.zeros((count, 2), np.int32)
        self.orientations, self.seconds = np.ones(count, np.uint8), np.zeros(count, np.float32)
        self.drawn = [b""] * count

    def put(self, place: int, image: Image) -> None:
        if image.dtype != np.uint8 or image.ndim != 3:
            self.states[place] = FAILED
        elif (codec := self._codecs[place]) == "none":
            self._reserve(place, image.size).reshape(image.shape)[...] = image
            self._close(place, image.shape)
        else:
            self._put_encoded(place, image, codec)

    def _put_encoded(self, place: int, image: Image, codec: str) -> None:
        try:
            content = np.frombuffer(encode(codec, np.ascontiguousarray(image)), np.uint8)
        except Exception:
            self.states[place] = FAILED
            return
        self.put_packed(place, content, image.shape)

    def put_packed(self, place: int, content: NDArray[np.uint8], shape: tuple[int, ...]) -> None:
        self._reserve(place, len(content))[...] = content
        self._close(place, shape)

    def _reserve(self, place: int, length: int) -> NDArray[np.uint8]:
        if self._free + length > len(self.arena.bytes):
            raise _NoRoom
        self.begins[place], self.lengths[place] = self._free, length
        return self.arena.bytes[self._free : self._free + length]

    def _close(self, place: int, shape: tuple[int, ...]) -> None:
        self._free = align(self._free + int(self.lengths[place]))
        self.shapes[place] = shape
        self.states[place] = MADE

    def reply(self, cpu_seconds: float) -> Reply:
        return Reply(
            states=pack(self.states, "u1"),
            begins=pack(self.begins, "<i8"),
            lengths=pack(self.lengths, "<i8"),
            shapes=pack(self.shapes, "<i4"),
            sizes=pack(self.sizes, "<i4"),
            orientations=pack(self.orientations, "u1"),
            seconds=pack(self.seconds, "<f4"),
            drawn=self.drawn,
            cpu_seconds=cpu_seconds,
        )


class _Lot:
    """The samples of a job that go through the same number of steps."""

    def __init__(self, output: _Output, places: list[int], ids: NDArray[np.int64], epoch: int) -> None:
        self._output, self._places = output, places
        self.ids, self.epoch = ids, epoch
        self._begun = time.thread_time()

    def note(self, place: int, header: Header, size: tuple[int, int], rows: Sequence[Row]) -> None:
        place = self._places[place]
        self._output.arena.place = place
        self._output.sizes[place] = size
        self._output.orientations[place] = header.orientation
        self._output.drawn[place] = np.fromiter(concatenated.from_iterable(rows), "<f8").tobytes()

    def emit(self, place: int, image: Image) -> None:
        self._output.put(self._places[place], image)
        self._count(place)

    def emit_packed(self, place: int, content: bytes, shape: tuple[int, int, int]) -> None:
        self._output.put_packed(self._places[place], np.frombuffer(content, np.uint8), shape)
        self._count(place)

    def fail(self, place: int, stage: str, error: Exception) -> None:
        self._output.states[self._places[place]] = FAILED
        self._count(place)

    def _count(self, place: int) -> None:
        """One after the other: what was spent since the last is this one's, headers and draws the first's."""
        begun, self._begun = self._begun, time.thread_time()
        self._output.seconds[self._places[place]] = self._begun - begun


class _SeeingLot(_Lot):
    """One of which more is made than its pipeline says: of whole pictures, by other chains."""

    def __init__(
        self, output: _Output, places: list[int], ids: NDArray[np.int64], epoch: int, also: Sequence[Chain]
    ) -> None:
        super().__init__(output, places, ids, epoch)
        self._also = also

    def see(self, place: int, image: Image) -> None:
        for number, chain in enumerate(self._also, start=1):
            row = number * self._output.samples + self._places[place]
            chain.run([image], _Further(self._output, row, self.ids[place : place + 1], self.epoch))


class _Further:
    """A single picture on another way; what cannot be made of it leaves the sample itself as it is."""

    def __init__(self, output: _Output, row: int, ids: NDArray[np.int64], epoch: int) -> None:
        self._output, self._row, self.ids, self.epoch = output, row, ids, epoch

    def emit(self, place: int, image: Image) -> None:
        self._output.put(self._row, image)

    def fail(self, place: int, stage: str, error: Exception) -> None:
        self._output.states[self._row] = FAILED


def main() -> None:
    """Serve the socket and the arena whose descriptors are the last two arguments, until the daemon ends."""
    _settle_in()
    link, arena = socket.socket(fileno=int(sys.argv[-2])), Arena(int(sys.argv[-1]))
    with link, suppress(EOFError, ConnectionError):
        setup = receive(link, Setup)
        _bound_memory(setup.limits)
        send(link, Hello(digests() if setup.digests else {}))
        catalogue = steps.catalogue()
        while True:
            job = receive(link, Job)
            send(link, Answer(_answer(job, arena, setup.limits, catalogue)))


def _settle_in() -> None:
    """Live and die with the daemon: not by its terminal's Ctrl-C, nor by a SIGTERM to its whole group."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold other people's pictures
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_WRITTEN, _MOST_WRITTEN))
    faulthandler.enable()


def _bound_memory(limits: Limits) -> None:
    """So that no combination of steps takes more than its sample could need: it fails, and goes out raw."""
    most = _MOST_MEMORY + _PIXEL_MEMORY * limits.pixels
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _answer(job: Job, arena: Arena, limits: Limits, catalogue: Mapping[str, type[Step]]) -> Reply | Fault:
    try:
        return _run(job, arena, limits, catalogue)
    except Exception as error:
        # Not a crash: if it ended here, the daemon would look for a sample to blame.
        return Fault(f"{type(error).__name__}: {error}")
    finally:
        arena.place = NOBODY


def _run(job: Job, arena: Arena, limits: Limits, catalogue: Mapping[str, type[Step]]) -> Reply:
    """Every sample through its steps, those with the same cut together."""
    begin = time.process_time()
    pipeline = Pipeline.from_spec(job.spec, catalogue, offset=job.offset)
    cuts = np.frombuffer(job.cuts, np.uint8)
    ids, files = unpack(job.ids, "<i8", len(cuts)), _files(job, arena, len(cuts))
    output = _Output(arena, job, len(cuts) * (1 + len(job.also)))
    limits = limits if job.limits is None else limits.within(job.limits)
    others = [Pipeline.from_spec(spec, catalogue, offset=1) for spec in job.also]
    arena.place = LOADING
    for steps_to_load in (pipeline.cut(int(cuts.max()))[0], *others):
        _load(steps_to_load, job.codecs)
    arena.place = NOBODY
    also = [Chain(other, job.seed, limits) for other in others]
    with suppress(_NoRoom):
        for cut in np.unique(cuts).tolist():
            chain = Chain(pipeline.cut(cut)[0], job.seed, limits)
            for codec, places in _by_kind(np.flatnonzero(cuts == cut).tolist(), job.codecs):
                lot = _make_lot(output, places, ids[places], job.epoch, also)
                if codec is None:
                    chain.run([files[place] for place in places], lot)
                else:
                    _cut_files(chain, [files[place] for place in places], lot, codec)
    return output.reply(time.process_time() - begin)


def _make_lot(
    output: _Output, places: list[int], ids: NDArray[np.int64], epoch: int, also: Sequence[Chain]
) -> _Lot:
    return _SeeingLot(output, places, ids, epoch, also) if also else _Lot(output, places, ids, epoch)


def _by_kind(places: list[int], codecs: Sequence[str]) -> Iterator[tuple[str | None, list[int]]]:
    """The places whose pixels are packed, under None, and those of each codec that cuts the file."""
    kinds = [codecs[place] if codecs[place] in EXCERPTS else None for place in places]
    for kind in dict.fromkeys(kinds):
        yield kind, [place for place, its in zip(places, kinds, strict=True) if its == kind]


def _cut_files(chain: Chain, files: Sequence[memoryview], lot: _Lot, codec: str) -> None:
    """An excerpt of each file, which is not decoded; a file that has none fails, and goes out whole."""
    step = chain.pipeline.steps[0]
    assert isinstance(step, Decode)
    for place, header, _, box in chain.locate(files, lot):
        made = None
        if box is not None:
            made = excerpt(files[place], header, box, form=EXCERPTS[codec], oriented=step.oriented)
        if box is None or made is None:
            lot.fail(place, "decode", SampleCorrupt("it has no excerpt"))
        else:
            lot.emit_packed(place, made, (box[2], box[3], MODES[step.mode]))


def _load(pipeline: Pipeline, codecs: Sequence[str]) -> None:
    """Import what the job will need: from a cold disk this takes longer than any sample may."""
    if any("torch" in LIBRARIES.get(step.name, ()) for step in pipeline.steps):
        torch_module()
    for codec in set(codecs):
        if codec not in EXCERPTS:
            load_codec(codec)


def _files(job: Job, arena: Arena, count: int) -> list[memoryview]:
    ends = FIRST + np.cumsum(unpack(job.lengths, "<i8", count))
    starts = [FIRST, *ends.tolist()]
    memory = arena.bytes.data
    return [memory[start:end] for start, end in zip(starts, ends.tolist(), strict=False)]


if __name__ == "__main__":
    main()
