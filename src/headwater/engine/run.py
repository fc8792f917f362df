"""The one loop over samples: read, run the chain, hand over in order.

Batches go through in flights. A flight is divided into lots; a lot is read by one thread, stepped by
another, and the thread that ends a flight's last lot finishes the batch. Whoever iterates launches
new flights as far ahead as the bounds allow, so there is no thread that only waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from headwater.data.steps.base import Image
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew
from headwater.engine.fetching import Costs, Fetched, Reader, Wanted
from headwater.engine.meter import Meter
from headwater.engine.watching import Watched
from headwater.errors import LoaderTimeout, SampleError, SampleTooLarge
from headwater.measure.profile import Seen

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Task:
    """One batch to make: where its samples lie, who they are, and how many bytes their files have.

    `ways` says how each is to be fetched (see `Wanted`), and `plan` is whatever its planner knows it by;
    `weights` are what samples count, None: all alike.
    """

    positions: NDArray[np.int64]
    ids: NDArray[np.int64]
    epoch: int = 0
    bytes_raw: int = 0
    ways: NDArray[np.uint8] | None = None
    plan: Any = None
    weights: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Failure:
    """A sample that could not be made: its slot in the batch, the stage, and why."""

    slot: int
    stage: str
    error: Exception


@dataclass(frozen=True)
class Bounds:
    """How far a run may go ahead of whoever takes its batches."""

    batches: int = 4
    bytes: int = 1 << 30
    lot: int = 64


class Target(Protocol[T_co]):
    """A batch in the making. Slots are filled from several threads, each slot once."""

    def put(self, slot: int, image: Image) -> None: ...
    def put_fields(self, slots: Sequence[int], fields: Mapping[str, Sequence[object]]) -> None: ...
    def settle(self, begin: int, end: int) -> None:
        """Slots begin..end-1 are filled or have failed."""
        ...

    def finish(self, failures: Sequence[Failure]) -> T_co:
        """All slots are settled. Raises what the failures deserve."""
        ...


class Watch(Protocol):
    """Who wants to know what the samples of tasks with `ways` took. Told from several threads."""

    def see(self, task: Task, seen: Seen) -> None: ...


class Sink(Protocol[T_co]):
    """Where a run's batches go."""

    @property
    def batch_bytes(self) -> int:
        """Bytes of a finished batch; 0 while unknown."""
        ...

    def open(self, task: Task) -> Target[T_co]: ...


def run(
    tasks: Iterable[Task],
    reader: Reader,
    *,
    chain: Chain,
    sink: Sink[T],
    crew: Crew,
    bounds: Bounds,
    meter: Meter,
    watch: Watch | None = None,
    timeout: float = 0.0,
) -> Iterator[T]:
    """Make every task's batch, in order, ahead of demand.

    An error ends the run at the batch where it happened; batches before it are delivered. Closing
    the iterator cancels what is under way. `timeout` seconds without a batch raise `LoaderTimeout`;
    0 waits for ever.
    """
    work = _Run(reader, chain, sink, crew, meter, watch)
    try:
        yield from work.deliver(tasks, bounds, timeout)
    finally:
        work.cancelled = True
        reader.abandon()


class _Flight(Generic[T]):
    """A batch under way."""

    def __init__(self, task: Task, target: Target[T], lots: int) -> None:
        self.task = task
        self.target = target
        self.failures: list[Failure] = []
        self.done = threading.Event()
        self.result: T | None = None
        self.error: BaseException | None = None
        self.read_at = 0.0
        self._unread = self._unmade = lots
        self._lock = threading.Lock()

    def lot_read(self) -> None:
        with self._lock:
            self._unread -= 1
            if not self._unread:
                self.read_at = time.perf_counter()

    def lot_made(self) -> bool:
        """True for the last lot."""
        with self._lock:
            self._unmade -= 1
            return not self._unmade

    def abort(self, error: BaseException) -> None:
        with self._lock:
            self.error = self.error or error
        self.done.set()


class _Lot(Generic[T]):
    """Part of a flight: slots begin..end-1."""

    def __init__(self, flight: _Flight[T], begin: int, end: int, key: Callable[[int], str]) -> None:
        self.flight = flight
        self.key = key
        self.begin, self.end = begin, end
        self.places = list(range(begin, end))
        self.positions = flight.task.positions[begin:end]
        self.ids = flight.task.ids[begin:end]
        self.epoch = flight.task.epoch
        self.ways = None if flight.task.ways is None else flight.task.ways[begin:end]

    def emit(self, place: int, image: Image) -> None:
        try:
            self.flight.target.put(self.places[place], image)
        except Exception as error:
            key = self.key(int(self.positions[place]))
            error.add_note(f"sample {key!r} (id {self.ids[place]}) was being put into its batch")
            raise

    def fail(self, place: int, stage: str, error: Exception) -> None:
        if isinstance(error, MemoryError):
            raise error
        self.flight.failures.append(Failure(self.places[place], stage, error))

    def keep(self, kept: list[int]) -> None:
        """Go on with these of the lot's samples; the others have failed."""
        self.places = [self.places[place] for place in kept]
        self.positions, self.ids = self.positions[kept], self.ids[kept]
        self.ways = None if self.ways is None else self.ways[kept]


class _Run(Generic[T]):
    def __init__(
        self,
        reader: Reader,
        chain: Chain,
        sink: Sink[T],
        crew: Crew,
        meter: Meter,
        watch: Watch | None = None,
    ) -> None:
        self.reader, self.chain, self.sink, self.crew, self.meter = reader, chain, sink, crew, meter
        self.watch = watch
        self.cancelled = False
        self.flights: deque[_Flight[T]] = deque()
        crew.runs.add(self)

    def abort(self, error: Exception) -> None:
        """Wake whoever waits for a batch: it will not come."""
        for flight in list(self.flights):
            flight.abort(error)
        self.reader.abandon()

    def deliver(self, tasks: Iterable[Task], bounds: Bounds, timeout: float) -> Iterator[T]:
        waiting = deque(islice(source := iter(tasks), 1))
        flights = self.flights

        def top_up() -> None:
            while waiting and self._may_launch(waiting[0], flights, bounds):
                flights.append(self._launch(waiting.popleft(), bounds.lot))
                waiting.extend(islice(source, 1))

        top_up()
        while flights:
            ready = [self._wait(flights[0], timeout)]
            flights.popleft()
            top_up()
            yield ready.pop()  # popped, so that this frame does not keep the batch alive

    def _may_launch(self, task: Task, flights: Sequence[_Flight[T]], bounds: Bounds) -> bool:
        if not flights:
            return True
        batch = self.sink.batch_bytes
        ahead = bounds.batches if batch else min(2, bounds.batches)
        held = sum(flight.task.bytes_raw + batch for flight in flights)
        return len(flights) < ahead and held + task.bytes_raw + batch <= bounds.bytes

    def _launch(self, task: Task, lot: int) -> _Flight[T]:
        self.crew.check()
        count = len(task.ids)
        begins = range(0, count, lot)
        flight = _Flight(task, self.sink.open(task), len(begins))
        for begin in begins:
            self.crew.read.submit(self._read, _Lot(flight, begin, min(begin + lot, count), self.reader.key))
        return flight

    def _wait(self, flight: _Flight[T], timeout: float) -> T:
        self.crew.check()
        begin = time.perf_counter()
        if not flight.done.wait(timeout or None):
            stage = "steps" if flight.read_at else "read"
            first = self.reader.key(int(flight.task.positions[0]))
            raise LoaderTimeout(
                f"no batch within {timeout:g} s, waiting for {stage} of {len(flight.task.ids)} samples, "
                f"the first {first!r}; raise timeout, or look at the storage"
            )
        end = time.perf_counter()
        if flight.error is not None:
            raise flight.error
        read = min(max(flight.read_at - begin, 0.0), end - begin)
        self.meter.wait("read", read)
        self.meter.wait("steps", end - begin - read)
        assert flight.result is not None
        return flight.result

    def _read(self, lot: _Lot[T]) -> None:
        if self.cancelled:
            return
        try:
            begin = time.perf_counter()
            self._refuse_large(lot)
            found = self._fetch(lot) if lot.places else Fetched([])
            lot.flight.lot_read()
            self.meter.work("read", time.perf_counter() - begin)
            self.crew.step.submit(self._step, lot, found)
        except BaseException as error:
            lot.flight.abort(error)

    def _refuse_large(self, lot: _Lot[T]) -> None:
        """Samples past the cap on bytes fail here, before memory is taken for them."""
        cap = self.chain.limits.bytes
        sizes = self.reader.sizes(lot.positions)
        if sizes.max(initial=0) <= cap:
            return
        for place in np.flatnonzero(sizes > cap).tolist():
            error = SampleTooLarge(
                f"{sizes[place]:,} bytes, the cap is {cap:,}; raise limits.bytes to read it"
            )
            lot.fail(place, "read", error)
        lot.keep(np.flatnonzero(sizes <= cap).tolist())

    def _fetch(self, lot: _Lot[T]) -> Fetched:
        """The lot's values; samples that could not be read leave the lot."""
        found = self.reader.fetch(Wanted(lot.positions, lot.ids, lot.epoch, lot.ways))
        self.meter.count(bytes_moved=found.bytes_moved)
        if found.failed:
            found = self._drop_failed(lot, found)
        if found.fields and lot.places:
            lot.flight.target.put_fields(lot.places, found.fields)
        return found

    def _drop_failed(self, lot: _Lot[T], found: Fetched) -> Fetched:
        for place, error in found.failed.items():
            lot.fail(place, "read", error)
        kept = [place for place in range(len(found.values)) if place not in found.failed]
        lot.keep(kept)
        return Fetched(
            [found.values[place] for place in kept],
            {name: [values[place] for place in kept] for name, values in found.fields.items()},
            done=None if found.done is None else found.done[kept],
            costs=None if found.costs is None else found.costs.take(kept),
            held=None if found.held is None else found.held[kept],
        )

    def _step(self, lot: _Lot[T], found: Fetched) -> None:
        if self.cancelled:
            return
        flight = lot.flight
        try:
            begin = time.perf_counter()
            if self.watch is None or found.costs is None:
                self.chain.run(found.values, lot, done=found.done)
                flight.target.settle(lot.begin, lot.end)
            else:
                self.watch.see(flight.task, self._run_watched(lot, found, found.costs))
            if flight.lot_made():
                flight.failures.sort(key=lambda failure: failure.slot)
                flight.result = flight.target.finish(flight.failures)
                flight.done.set()
            self.meter.work("steps", time.perf_counter() - begin)
        except BaseException as error:
            flight.abort(error)

    def _run_watched(self, lot: _Lot[T], found: Fetched, costs: Costs) -> Seen:
        """The same, with a clock beside it."""
        assert lot.ways is not None
        watched = Watched(lot, costs)
        self.chain.run(found.values, watched, done=found.done)
        lot.flight.target.settle(lot.begin, lot.end)
        done = np.zeros(len(lot.ways), np.bool_) if found.done is None else found.done > 0
        return Seen(
            positions=lot.positions,
            ids=lot.ids,
            epoch=lot.epoch,
            ways=lot.ways,
            done=done | (lot.ways == 0),
            bytes=costs.bytes,
            store_seconds=costs.store_seconds,
            trainer_seconds=costs.trainer_seconds + watched.seconds(),
            sizes=costs.sizes,
            able=costs.able,
            file_bytes=self.reader.sizes(lot.positions),
            held=found.held,
        )


def explain(failure: Failure, *, id: int, key: str) -> Exception:
    """The failure's error, told which sample and stage it belongs to; its traceback stays."""
    error = failure.error
    if isinstance(error, SampleError):
        error.id, error.key, error.stage = id, key, failure.stage
    else:
        error.add_note(f"sample {key!r} (id {id}) failed at {failure.stage}")
    return error
