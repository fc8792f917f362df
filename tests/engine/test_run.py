"""The loop: in order, ahead within bounds, cancelled at once, and every failure named."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from headwater.data.pipeline import Pipeline
from headwater.engine.chain import Chain
from headwater.engine.crew import Crew, Inline
from headwater.engine.fetching import Fetched, Wanted, fetch_files
from headwater.engine.meter import Meter
from headwater.engine.run import Bounds, Failure, Task, run
from headwater.errors import DatasetStale, ForkedUse, LoaderTimeout, SampleTooLarge, Unreachable, WrongUse

RAW = Chain(Pipeline(()))


class Numbers:
    """A reader whose samples are eight bytes that say their position."""

    def __init__(self, *, missing: Sequence[int] = (), huge: Sequence[int] = (), down: bool = False) -> None:
        self.missing, self.huge, self.down = set(missing), set(huge), down
        self.served: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def sizes(self, positions: np.ndarray) -> np.ndarray:
        return np.where(np.isin(positions, list(self.huge)), 1 << 40, 8)

    def read(self, positions: np.ndarray) -> list[bytes]:
        self.gate.wait(20)
        if self.down:
            raise Unreachable("nobody answers")
        if self.missing & set(positions.tolist()):
            raise DatasetStale("a file is gone")
        self.served += positions.tolist()
        return [int(position).to_bytes(8, "little") for position in positions]

    def read_fields(self, positions: np.ndarray) -> Mapping[str, Sequence[object]]:
        return {"twice": [2 * int(position) for position in positions]}

    def fetch(self, wanted: Wanted) -> Fetched:
        return fetch_files(self, wanted.positions)

    def abandon(self) -> None:
        self.abandoned = True

    def key(self, position: int) -> str:
        return f"number {position}"


class Lists:
    """A sink whose batches are lists of numbers; it fails on purpose when asked to."""

    batch_bytes = 100

    def __init__(self, explode_at: int = -1) -> None:
        self.explode_at = explode_at
        self.opened = 0

    def open(self, task: Task) -> Target:
        self.opened += 1
        return Target(task, self)


class Target:
    def __init__(self, task: Task, sink: Lists) -> None:
        self.values: list[int | None] = [None] * len(task.ids)
        self.twice: list[object] = [None] * len(task.ids)
        self.settled: list[tuple[int, int]] = []
        self.sink = sink

    def put(self, slot: int, image: Any) -> None:
        value = int.from_bytes(image, "little")
        if value == self.sink.explode_at:
            raise RuntimeError("the sink broke")
        self.values[slot] = value

    def put_fields(self, slots: Sequence[int], fields: Mapping[str, Sequence[object]]) -> None:
        for slot, value in zip(slots, fields["twice"], strict=True):
            self.twice[slot] = value

    def settle(self, begin: int, end: int) -> None:
        self.settled.append((begin, end))

    def finish(self, failures: Sequence[Failure]) -> tuple[list[int | None], list[Failure]]:
        covered = sorted(slot for begin, end in self.settled for slot in range(begin, end))
        assert covered == list(range(len(self.values)))
        assert all(twice == 2 * value for twice, value in zip(self.twice, self.values, strict=True) if value)
        return self.values, list(failures)


def tasks(count: int, size: int = 10) -> list[Task]:
    places = [np.arange(number * size, (number + 1) * size) for number in range(count)]
    return [Task(place, place, bytes_raw=8 * size) for place in places]


def go(
    reader: Numbers, sink: Lists | None = None, *, count: int = 20, workers: int = 2, **options: Any
) -> Any:
    crew = options.pop("crew", None) or Crew(workers, 3)
    bounds = options.pop("bounds", Bounds(lot=3))
    return run(
        options.pop("tasks", tasks(count)),
        reader,
        chain=RAW,
        sink=sink or Lists(),
        crew=crew,
        bounds=bounds,
        meter=options.pop("meter", Meter()),
        **options,
    )


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("lot", [1, 3, 10, 64])
def test_batches_come_whole_and_in_order(workers: int, lot: int) -> None:
    batches = list(go(Numbers(), workers=workers, bounds=Bounds(lot=lot)))
    assert [value for values, _ in batches for value in values] == list(range(200))


def test_nothing_to_do_is_nothing() -> None:
    assert list(go(Numbers(), count=0)) == []


@pytest.mark.parametrize("workers", [0, 3])
def test_one_missing_file_costs_one_sample(workers: int) -> None:
    batches = list(go(Numbers(missing=[4, 17]), workers=workers))
    assert [value for values, _ in batches for value in values if value is not None] == [
        number for number in range(200) if number not in (4, 17)
    ]
    failures = [failure for _, found in batches for failure in found]
    assert [(failure.slot, failure.stage, str(failure.error)) for failure in failures] == [
        (4, "read", "a file is gone"),
        (7, "read", "a file is gone"),
    ]


@pytest.mark.parametrize("lot", [1, 3, 10])
def test_a_file_past_the_cap_is_refused_before_it_is_read(lot: int) -> None:
    reader = Numbers(huge=[5, 6, 7])
    batches = list(go(reader, bounds=Bounds(lot=lot)))
    assert not {5, 6, 7} & set(reader.served)
    failures = [failure for _, found in batches for failure in found]
    assert [(failure.slot, failure.stage) for failure in failures] == [(5, "read"), (6, "read"), (7, "read")]
    assert all(isinstance(failure.error, SampleTooLarge) for failure in failures)
    assert sum(value is not None for values, _ in batches for value in values) == 197


def test_closing_the_crew_wakes_whoever_waits() -> None:
    reader = Numbers()
    reader.gate.clear()
    crew = Crew(1, 1)
    threading.Timer(0.1, crew.close).start()
    with pytest.raises(WrongUse, match="was closed"):
        next(go(reader, crew=crew))
    reader.gate.set()


def test_an_unreachable_store_ends_the_run() -> None:
    with pytest.raises(Unreachable):
        list(go(Numbers(down=True)))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_the_sink_comes_out_after_the_batches_before_it(workers: int) -> None:
    seen: list[int] = []
    batches = go(Numbers(), Lists(explode_at=35), workers=workers)
    with pytest.raises(RuntimeError, match="the sink broke"):
        seen.extend(values[0] for values, _ in batches)
    assert seen == [0, 10, 20]


def test_an_error_in_the_sink_names_the_sample() -> None:
    with pytest.raises(RuntimeError) as caught:
        list(go(Numbers(), Lists(explode_at=35)))
    assert "'number 35' (id 35)" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("bounds", "ahead"), [(Bounds(batches=3, lot=5), 3), (Bounds(50, bytes=400, lot=5), 2)]
)
def test_no_more_is_under_way_than_the_bounds_allow(bounds: Bounds, ahead: int) -> None:
    sink = Lists()
    batches = go(Numbers(), sink, bounds=bounds)
    for taken, _ in enumerate(batches, start=1):
        assert sink.opened <= taken + ahead


def test_a_batch_larger_than_the_bound_still_goes_through() -> None:
    assert len(list(go(Numbers(), bounds=Bounds(bytes=1, lot=3)))) == 20


def test_closing_stops_reading() -> None:
    reader = Numbers()
    crew = Crew(2, 1)
    batches = go(reader, crew=crew, count=1000, bounds=Bounds(batches=4, lot=1))
    next(batches)
    batches.close()
    crew.read.shutdown(wait=True)
    assert len(reader.served) < 100


def test_silence_meets_the_timeout() -> None:
    reader = Numbers()
    reader.gate.clear()
    begin = time.monotonic()
    with pytest.raises(LoaderTimeout, match=r"0\.1 s, waiting for read of 10 samples, the first 'number 0'"):
        next(go(reader, timeout=0.1))
    assert time.monotonic() - begin < 5
    reader.gate.set()


def test_waiting_and_work_are_metered() -> None:
    meter = Meter()
    reader = Numbers()
    reader.gate.clear()
    threading.Timer(0.2, reader.gate.set).start()
    list(go(reader, meter=meter, count=3))
    stats = meter.stats()
    assert stats.wait_seconds["read"] > 0.1
    assert stats.wait_seconds["steps"] < stats.wait_seconds["read"]
    assert stats.bytes_moved == 30 * 8
    assert stats.work_seconds["read"] > 0.1


def test_a_crew_of_another_process_is_refused() -> None:
    crew = Crew(1, 1)
    crew._pid = os.getpid() + 1
    with pytest.raises(ForkedUse, match="spawn"):
        next(go(Numbers(), crew=crew))


def test_inline_runs_in_the_callers_thread() -> None:
    crew = Crew(0, 5)
    assert isinstance(crew.read, Inline)
    assert isinstance(crew.step, Inline)
    before = set(threading.enumerate())
    list(go(Numbers(), crew=crew))
    assert set(threading.enumerate()) <= before  # those of other tests may end meanwhile
