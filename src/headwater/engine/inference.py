"""Frozen layers at the end of a run: images are gathered batch by batch, and become features.

A store's job, a request for features, a laptop without any store and a benchmark all hand `Extraction` to the
one loop; reading, steps and layers overlap there. `Gathering` is the same for what stores have made: for
features, or for what crosses at a cut, of which the layers behind it make features here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.data.image import DEFAULT_LIMITS
from headwater.data.pipeline import Pipeline
from headwater.data.steps.base import Image
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew
from headwater.engine.fetching import Reader
from headwater.engine.meter import Meter
from headwater.engine.run import Bounds, Failure, Sink, Task, run
from headwater.errors import ModelError, SampleError

Ids = NDArray[np.int64]
Halves = NDArray[np.float16]

FEATURES = "features"
BATCH = 64
"""Samples of a batch. The pixels of all are in memory until its features are made."""
_BYTES_AHEAD = 1 << 28
_LOT = 16
_NO_CAP = 1 << 62


class Extractor(Protocol):
    """Frozen layers that are ready to run; called from several threads at once."""

    @property
    def width(self) -> int:
        """How many features an image has."""
        ...

    def features(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(n, width) from uint8 images (n, height, width, channels)."""
        ...


class Rest(Protocol):
    """The layers behind a cut, ready to run; called from several threads at once."""

    @property
    def width(self) -> int:
        """How many features an image has."""
        ...

    def features(self, vectors: Halves) -> NDArray[np.float32]:
        """(n, width) from what crossed, a row for each image."""
        ...


@dataclass(frozen=True)
class Failed:
    """A sample that has no features, and why."""

    position: int
    id: int
    error: Exception


@dataclass(frozen=True, eq=False)
class FeatureBatch:
    """The samples of a task that could be made, in its order, a row of `features` each; and the others."""

    positions: Ids
    ids: Ids
    features: Halves
    failures: tuple[Failed, ...] = ()


class _Form(Protocol):
    """What comes for each sample of a batch, and how features are made of it."""

    batch_bytes: int
    of: str

    @property
    def width(self) -> int: ...
    def allocate(self, count: int, first: NDArray[Any]) -> NDArray[Any]:
        """Room for a batch of such as the first; raises `ModelError` for what cannot be."""
        ...

    def finish(self, gathered: NDArray[Any]) -> Halves: ...


class FeatureSink:
    """Gathers the images of a batch and runs the layers on them, in the thread that brings the last image.

    Features are rounded to half precision, whoever asks for them: so a label is the same whether they were
    just made or kept. A sample whose features do not fit into that has failed.
    """

    def __init__(self, extractor: Extractor, of: str = FEATURES) -> None:
        self._extractor, self.of = extractor, of
        self.batch_bytes = 0
        """Bytes of the pixels of the batch that was begun last."""

    @property
    def width(self) -> int:
        return self._extractor.width

    def open(self, task: Task) -> _Target:
        return _Target(task, self)

    def allocate(self, count: int, first: NDArray[Any]) -> NDArray[np.uint8]:
        if first.dtype != np.uint8 or first.ndim != 3:
            raise ModelError(
                f"the model's steps leave {first.dtype} of {first.shape}; layers beside the data take uint8, "
                "height x width x channels"
            )
        self.batch_bytes = count * first.nbytes
        return np.empty((count, *first.shape), np.uint8)

    def finish(self, gathered: NDArray[np.uint8]) -> Halves:
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is looked for
            return self._extractor.features(gathered).astype(np.float16)


class VectorSink:
    """Gathers vectors that were made elsewhere; with a `rest`, features are made of them."""

    of = FEATURES

    def __init__(self, width: int, rest: Rest | None = None) -> None:
        self._gathered, self._rest = width, rest
        self.batch_bytes = 2 * width * BATCH

    @property
    def width(self) -> int:
        return self._gathered if self._rest is None else self._rest.width

    def open(self, task: Task) -> _Target:
        return _Target(task, self)

    def allocate(self, count: int, first: NDArray[Any]) -> Halves:
        if first.shape != (self._gathered,) or first.dtype != np.float16:
            raise ModelError(
                f"features are {first.dtype} of {first.shape}; the model has {self._gathered} of them"
            )
        return np.empty((count, self._gathered), np.float16)

    def finish(self, gathered: Halves) -> Halves:
        if self._rest is None:
            return gathered
        with np.errstate(over="ignore"):  # as above
            return self._rest.features(gathered).astype(np.float16)


class _Target:
    """What came for one batch so far."""

    def __init__(self, task: Task, form: _Form) -> None:
        self._task, self._form = task, form
        self._made = np.zeros(len(task.ids), np.bool_)
        self._gathered: NDArray[Any] | None = None
        self._lock = threading.Lock()

    def put(self, slot: int, image: Image) -> None:
        gathered = self._gathered
        if gathered is None:
            gathered = self._begin(image)
        if image.shape != gathered.shape[1:] or image.dtype != gathered.dtype:
            raise ModelError(
                f"the model's steps leave images of {gathered.shape[1:]} and of {image.shape}; end them "
                "with a crop or a resize to one size"
            )
        gathered[slot] = image
        self._made[slot] = True

    def put_fields(self, slots: Sequence[int], fields: Mapping[str, Sequence[object]]) -> None:
        return None

    def settle(self, begin: int, end: int) -> None:
        return None

    def finish(self, failures: Sequence[Failure]) -> FeatureBatch:
        task, gathered, self._gathered = self._task, self._gathered, None
        lost = [(failure.slot, failure.error) for failure in failures]
        features = np.empty((0, self._form.width), np.float16)
        if gathered is not None:
            features = self._form.finish(gathered if self._made.all() else gathered[self._made])
        (slots,) = np.nonzero(self._made)
        finite = np.isfinite(features).all(axis=1)
        lost += [(int(slot), _not_finite(self._form.of)) for slot in slots[~finite]]
        kept = slots[finite]
        return FeatureBatch(
            task.positions[kept],
            task.ids[kept],
            features if finite.all() else features[finite],
            tuple(self._fail(slot, error) for slot, error in sorted(lost, key=lambda entry: entry[0])),
        )

    def _fail(self, slot: int, error: Exception) -> Failed:
        return Failed(int(self._task.positions[slot]), int(self._task.ids[slot]), error)

    def _begin(self, image: Image) -> NDArray[Any]:
        with self._lock:
            if self._gathered is None:
                self._gathered = self._form.allocate(len(self._task.ids), image)
            return self._gathered


def crossing_at(cut: str) -> str:
    """What the layers up to a cut give, in words; all layers, where it is empty."""
    return f"values at the cut {cut!r}" if cut else FEATURES


def _not_finite(of: str) -> SampleError:
    remedy = "" if of == FEATURES else f" (up to {np.finfo(np.float16).max:,.0f}); cut elsewhere"
    return SampleError(f"its {of} are not finite numbers in half precision{remedy}")


@dataclass(frozen=True)
class Extraction:
    """All that it takes to make features: where images come from, steps that are left, layers and threads.

    `reader` makes a reader for one run. With a reader that gives files, `chain` holds the model's steps per
    sample; with one that gives finished images it is empty. `of` says what the layers give.
    """

    reader: Callable[[], Reader]
    chain: Chain
    extractor: Extractor
    crew: Crew
    meter: Meter = field(default_factory=Meter)
    of: str = FEATURES

    def run(self, positions: Ids, ids: Ids, *, epoch: int = 0) -> Iterator[FeatureBatch]:
        """The features of these samples, in order, at most `BATCH` at a time."""
        sink = FeatureSink(self.extractor, self.of)
        return _run(self, _tasks(positions, ids, epoch), sink, self.chain, lot=_LOT)


@dataclass(frozen=True)
class Gathering:
    """The same where `reader` gives the features themselves, as vectors of `width` float16.

    With a `rest` they are what crosses at a cut, and the layers behind it run in the crew's threads.
    """

    reader: Callable[[], Reader]
    width: int
    crew: Crew
    meter: Meter = field(default_factory=Meter)
    rest: Rest | None = None

    def run(self, positions: Ids, ids: Ids, *, epoch: int = 0) -> Iterator[FeatureBatch]:
        """The features of these samples, in order, at most `BATCH` at a time, asked for as they are."""
        # Files of any size may be behind a vector: the cap on files is the store's affair.
        nothing = Chain(Pipeline(()), limits=replace(DEFAULT_LIMITS, bytes=_NO_CAP))
        sink = VectorSink(self.width, self.rest)
        return _run(self, _tasks(positions, ids, epoch), sink, nothing, lot=BATCH)


def _run(
    plan: Extraction | Gathering, tasks: Iterator[Task], sink: Sink[FeatureBatch], chain: Chain, *, lot: int
) -> Iterator[FeatureBatch]:
    bounds = Bounds(batches=2 + max(plan.crew.workers, plan.crew.readers), bytes=_BYTES_AHEAD, lot=lot)
    return run(tasks, plan.reader(), chain=chain, sink=sink, crew=plan.crew, bounds=bounds, meter=plan.meter)


def _tasks(positions: Ids, ids: Ids, epoch: int) -> Iterator[Task]:
    for begin in range(0, len(ids), BATCH):
        part = slice(begin, begin + BATCH)
        yield Task(positions[part], ids[part], epoch=epoch)
