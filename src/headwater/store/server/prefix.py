"""The first steps of a pipeline, run at the store as far as its cores allow."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headwater.data.codecs import encode
from headwater.data.codecs.excerpts import EXCERPT_CUT, EXCERPTS, known_codecs, takes_excerpts
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.engine.budget import Busy, Cores, Gone, Reservation, Turn, Turnstile
from headwater.errors import WrongUse
from headwater.store.server.crops import Crop, Crops, Way
from headwater.store.server.ledger import Ledger
from headwater.store.server.spending import pause, set_aside
from headwater.store.server.workers import (
    BORROW_SECONDS,
    Done,
    Work,
    Workers,
    WorkersBusy,
    WorkersFailed,
)
from headwater.store.wire.catalogue import combined, longest
from headwater.store.wire.messages import ReadRequest
from headwater.store.wire.payloads import FACTS

log = logging.getLogger("headwater")

_CHUNK = 16  # samples that are admitted and run together
_PATIENCE = 0.05  # seconds that a chunk waits for cores before it goes out raw
_FIRST_GUESS = 2e-8  # CPU seconds per byte of a file, until something was measured
_LEARN = 0.2
_MOST_STEPS = 8
_MOST_REPLY = 256 << 20  # bytes; a client refuses replies of more than 1 GiB, and would ask the same again
_EVERYTHING = 1 << 62
_MOST_DIFFERING = 256  # digests that are told apart in the log
_MOST_EDGE = 65_535  # pixels; to make a longer one of a small picture takes many seconds


@dataclass
class Made:
    """Payloads at their cuts, or the files where nothing was done."""

    payloads: list[Any]
    facts: NDArray[np.void]
    drawn: list[bytes]
    quarantined: NDArray[np.bool_]
    bytes: int
    """Of all payloads."""


@dataclass(frozen=True)
class _Asked:
    """What a request asks for, sample by sample, as far as this store goes."""

    request: ReadRequest
    pipeline: Pipeline
    ids: NDArray[np.int64]
    cuts: NDArray[np.uint8]
    codecs: list[str]

    def work(self, places: NDArray[np.intp]) -> Work:
        """For some of the samples."""
        return Work(
            pipeline=self.pipeline,
            seed=self.request.seed,
            epoch=self.request.epoch,
            ids=self.ids[places],
            cuts=self.cuts[places],
            codecs=[self.codecs[place] for place in places.tolist()],
            limits=self.request.limits,
        )


class Prefix:
    """Runs steps in worker processes; what it cannot or may not do stays as it was."""

    def __init__(self, workers: Workers, cores: Cores, ledger: Ledger, *, crops: Crops | None = None) -> None:
        """`crops` are images that were made before, for a selection."""
        self._workers, self._cores, self._ledger = workers, cores, ledger
        self.crops = crops or Crops(0)
        # Whoever has most requests inside would otherwise get most of the workers. One more chunk than there
        # are workers, so that none of them waits for the next.
        self._line = Turnstile(workers.count + 1, _EVERYTHING)
        self._lock = threading.Lock()
        self._seconds_per_byte = _FIRST_GUESS
        self._pipelines: dict[bytes, Pipeline] = {}
        self._differing: set[str] = set()
        self._broken = False

    def run(
        self,
        request: ReadRequest,
        ids: NDArray[np.int64],
        files: Sequence[Any],
        turn: Turn,
        *,
        gone: Callable[[], bool] = lambda: False,
    ) -> Made:
        """Every sample up to its cut, or as far as this store can go exactly, or not at all.

        Raises `Gone` when `gone()` says, between two chunks, that nobody waits for them.
        """
        pipeline = self._pipeline(request)
        reach = self._reach(pipeline, request)
        cuts = np.minimum(np.frombuffer(request.cuts, np.uint8), reach)
        cuts[cuts > modest(request.steps)] = 0
        codecs = _codec_names(request, len(ids))
        excerpts = np.fromiter((codec in EXCERPTS for codec in codecs), bool, len(codecs))
        cuts[excerpts & ((cuts != EXCERPT_CUT) | (not takes_excerpts(pipeline)))] = 0
        made = Made(
            list(files),
            np.zeros(len(ids), FACTS),
            [b""] * len(ids),
            np.zeros(len(ids), bool),
            int(_lengths(files).sum()),
        )
        there = np.array([file is not None for file in files])
        (pixels,) = np.nonzero((cuts > 0) & there & ~excerpts)
        asked = _Asked(request, pipeline, ids, cuts, codecs)
        self._take_held(made, asked.work(pixels), pixels, request, turn)
        (wanted,) = np.nonzero((cuts > 0) & there & (made.facts["done"] == 0))
        for begin in range(0, len(wanted), _CHUNK):
            places = wanted[begin : begin + _CHUNK]
            work = asked.work(places)
            if gone():
                raise Gone("the caller hung up while steps were run for it")
            try:
                with self._enter(sum(len(files[place]) for place in places.tolist()), turn, gone):
                    done = self._try(work, [files[place] for place in places.tolist()])
            except (Busy, WorkersBusy):
                break  # the next chunk would only wait as long again
            if done is not None:
                self._take(made, done, work, places, request, turn)
        return made

    def _take_held(
        self, made: Made, work: Work, places: NDArray[np.intp], request: ReadRequest, turn: Turn
    ) -> None:
        """What was made of these to select among them; that they are asked for as pixels is remembered."""
        names = {name: number for number, name in enumerate(request.names)}
        for cut in np.unique(work.cuts).tolist():
            (some,) = np.nonzero(work.cuts == cut)
            way = Way.of(request.version, work.pipeline, cut, work.seed)
            self.crops.wish(way, work.epoch, len(some))
            held = self.crops.take(way, work.epoch, work.ids[some].tolist(), limits=work.limits)
            for number in some.tolist() if held else ():
                crop = held.get(int(work.ids[number]))
                if crop is not None:
                    kind = cut, names[work.codecs[number]]
                    self._put_held(made, int(places[number]), crop, work.codecs[number], kind, turn)
            sent = int((made.facts["done"][places[some]] > 0).sum())
            self._ledger.add("headwater_crops_total", sent, "sent")

    def _put_held(
        self, made: Made, place: int, crop: Crop, codec: str, kind: tuple[int, int], turn: Turn
    ) -> None:
        begun = time.thread_time()
        try:
            payload = encode(codec, crop.pixels)
        except Exception:  # as in a worker; there it ends as it would have without
            return
        seconds = crop.seconds + time.thread_time() - begun
        facts = (*kind, *crop.pixels.shape, *crop.source_size, crop.orientation, seconds)
        self._put(made, place, payload, crop.drawn, facts, turn)

    def insist(self, work: Work, files: Sequence[Any], turn: Turn, *, gone: Callable[[], bool]) -> Done:
        """One chunk, however long its turn and its cores are in coming: for what is of no use as files.

        Raises `Gone` when `gone()` says that nobody wants it any more, and `WorkersFailed`.
        """
        size = sum(map(len, files))
        while not gone():
            try:
                with self._enter(size, turn, gone):
                    seconds = size * self._seconds_per_byte
                    reserved = set_aside(self._cores, seconds, priority=turn.priority, gone=gone)
                    if reserved is not None:
                        return self._run(work, files, reserved)
            except (Busy, WorkersBusy):
                continue
            pause()
        raise Gone("nobody waits for these samples any more")

    def _enter(self, size: int, turn: Turn, gone: Callable[[], bool]) -> Turn:
        """Wait for a worker, in an order that is fair between clients by the bytes of their files."""
        while True:
            try:
                return turn.enter(self._line, memory=size, patience=BORROW_SECONDS, gone=gone)
            except Busy:
                if not self._workers.loading:
                    raise

    def _reach(self, pipeline: Pipeline, request: ReadRequest) -> int:
        """How far this store may go: not at all if it would not do exactly what the client expects."""
        own = combined(pipeline, self._workers.catalogue)
        if request.digest != own:
            self._note_difference(pipeline, request.digest, own)
        if request.digest != own or set(request.names) - set(known_codecs()):
            return 0
        return longest(pipeline, frozenset(self._workers.catalogue))

    def _note_difference(self, pipeline: Pipeline, theirs: str, own: str) -> None:
        """In the log, once, and not without end: a client can send any digest."""
        with self._lock:
            many = len(self._differing) >= _MOST_DIFFERING
            if many or theirs in self._differing or not self._workers.catalogue:
                return
            self._differing.add(theirs)
        names = ", ".join(sorted({step.name for step in pipeline.steps}))
        log.warning(
            "a trainer makes other bytes of %s (digest %r, here %r) and gets files; install the same "
            "simplejpeg, Pillow and torch on both sides",
            names,
            theirs,
            own,
        )

    def count(
        self, made: Made, request: ReadRequest, files: Sequence[Any], failed: Collection[int] = ()
    ) -> None:
        """Tell the ledger what was sent, and what was avoided of each file."""
        cut, sound = made.facts["done"] > 0, np.ones(len(files), bool)
        sound[list(failed)] = False
        lengths, sizes = _lengths(made.payloads), _lengths(files)
        for place, name in enumerate(request.names):
            if name not in known_codecs():
                continue  # a client's own words are no label of a metric
            chosen = cut & (made.facts["codec"] == place)
            kind = "pixels" if name == "none" else name
            self._ledger.add("headwater_bytes_sent_total", int(lengths[chosen].sum()), kind)
        self._ledger.add("headwater_bytes_sent_total", int(lengths[~cut].sum()), "raw")
        for cause, saved in _avoided(made.facts[cut], lengths[cut], sizes[cut]).items():
            self._ledger.add("headwater_bytes_avoided_total", saved, cause)
        asked = np.frombuffer(request.cuts, np.uint8) > 0
        outcomes = {
            "cut": cut,
            "quarantined": made.quarantined & sound,
            "pushed_back": asked & ~cut & ~made.quarantined & sound,
            "raw": ~asked & sound,
        }
        for outcome, samples in outcomes.items():
            self._ledger.add("headwater_samples_total", int(samples.sum()), outcome)

    def _try(self, work: Work, files: Sequence[Any]) -> Done | None:
        """None: no cores to spare, or no worker that lives. Raises `WorkersBusy`."""
        size = sum(map(len, files))
        reserved = self._cores.reserve(size * self._seconds_per_byte, _PATIENCE)
        if reserved is None:
            return None
        try:
            done = self._run(work, files, reserved)
        except WorkersFailed as error:
            if not self._broken:
                log.error("%s; samples go out as they are", error)
            self._broken = True
            return None
        self._broken = False
        return done

    def _run(self, work: Work, files: Sequence[Any], reserved: Reservation) -> Done:
        """In a worker, with CPU that was set aside; what it took is learned from."""
        size = sum(map(len, files))
        with reserved:
            done = self._workers.run(work, files)
            reserved.settle(done.cpu_seconds)
        with self._lock:
            # A worker's first chunk also loads libraries: one chunk alone does not teach much.
            measured = min(done.cpu_seconds / max(size, 1), 2 * self._seconds_per_byte)
            self._seconds_per_byte += _LEARN * (measured - self._seconds_per_byte)
        return done

    def _take(
        self, made: Made, done: Done, work: Work, places: NDArray[np.intp], request: ReadRequest, turn: Turn
    ) -> None:
        names = {name: number for number, name in enumerate(request.names)}
        quarantined = set(done.quarantined)
        for number, place in enumerate(places.tolist()):
            if int(work.ids[number]) in quarantined:
                made.quarantined[place] = True
                continue
            payload = done.payloads[number]
            if payload is None:
                # tried, and it cannot be: the CPU that it took tells this from a lack of cores
                made.facts["seconds"][place] = done.seconds[number]
                continue
            facts = (
                work.cuts[number],
                names[work.codecs[number]],
                *done.shapes[number],
                *done.source_sizes[number],
                done.orientations[number],
                done.seconds[number],
            )
            self._put(made, place, payload, done.drawn[number], facts, turn)

    def _put(
        self, made: Made, place: int, payload: Any, drawn: bytes, facts: tuple[Any, ...], turn: Turn
    ) -> None:
        """In place of a file, if there is memory for it."""
        grown = len(payload) - len(made.payloads[place])
        if grown > 0 and (made.bytes + grown > _MOST_REPLY or not turn.grow(grown)):
            return
        made.payloads[place] = payload
        made.bytes += grown
        made.drawn[place], made.facts[place] = drawn, facts

    def _pipeline(self, request: ReadRequest) -> Pipeline:
        key = msgspec.msgpack.encode([request.steps, request.offset])
        found = self._pipelines.get(key)
        if found is None:
            if not all(isinstance(step.get("name"), str) for step in request.steps):
                raise WrongUse("a step without a name; each step is a name and parameters")
            found = Pipeline.from_spec(request.steps, catalogue(), offset=request.offset)
            with self._lock:
                if len(self._pipelines) >= 256:
                    self._pipelines.clear()
                self._pipelines[key] = found
        return found


def _lengths(values: Sequence[Any]) -> NDArray[np.int64]:
    return np.array([0 if value is None else len(value) for value in values], np.int64)


def _avoided(facts: NDArray[np.void], lengths: NDArray[np.int64], sizes: NDArray[np.int64]) -> dict[str, int]:
    """Bytes of the files that did not cross, by what spared them; a sample that grew has none.

    First what the cut saves, then the codec, which may only make up for a cut that makes more of a file.
    """
    pixels = facts["height"].astype(np.int64) * facts["width"] * facts["channels"]
    total = np.maximum(sizes - lengths, 0)
    by_cut = np.minimum(np.maximum(sizes - pixels, 0), total)
    return {"cut": int(by_cut.sum()), "codec": int((total - by_cut).sum())}


def modest(steps: Sequence[Mapping[str, Any]]) -> int:
    """How many leading steps a store runs for anybody.

    Beyond that, one request could keep a worker busy until it is taken for hung, and the sample that it was
    at would be quarantined for everybody.
    """
    large = (place for place, step in enumerate(steps) if any(map(_is_large, step.values())))
    return min(_MOST_STEPS, next(large, len(steps)))


def _is_large(value: object) -> bool:
    numbers = value if isinstance(value, list) else [value]
    return any(isinstance(number, int) and number > _MOST_EDGE for number in numbers)


def _codec_names(request: ReadRequest, count: int) -> list[str]:
    numbers = np.frombuffer(request.codecs, np.uint8)
    if numbers.max(initial=0) >= len(request.names):
        raise WrongUse(f"codec {numbers.max()} of {len(request.names)} named ones")
    return [request.names[number] for number in numbers.tolist()]
