"""What is planned after what was seen: a real store's dataset, and stretches whose times are made up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

import headwater as hw
from datasets import CLASSES, Photo, make_photo, write_folder
from headwater import transforms as T
from headwater.data.codecs.excerpts import EXCERPTS
from headwater.engine.cache import Cache, SampleCache
from headwater.engine.chain import Chain
from headwater.engine.meter import Meter
from headwater.engine.run import Task
from headwater.loader.offloading import Auto
from headwater.loader.planner import Planner
from headwater.loader.stretch import Stretch
from headwater.measure.epochplan import EpochPlan
from headwater.measure.logbook import Logbook, logbook_path
from headwater.measure.profile import Profile, Seen
from headwater.plan.offload import POLICIES, policies
from headwater.store.client.remote import RemoteStore
from headwater.store.client.traffic import Traffic
from headwater.store.fleet import ShardedStore
from stores import running_daemon

COUNT, BATCH = 4096, 64
STEPS = T.Compose([T.RandomCrop(64), T.RandomHorizontalFlip()]).samplewise
CUT = 64 * 64 * 3  # bytes at every cut, and let codecs make no difference
SIZE = 4 * CUT  # of a file
LINK = 10e6
FRESH = Auto(fresh=True)
NOTHING = slice(0)


def make_folder(folder: Path, numbers: range) -> Path:
    picture = make_photo(np.random.default_rng(3), 80, 80)
    return write_folder(folder, [Photo(n % len(CLASSES), f"{n:05d}", "jpg", picture) for n in numbers])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hw.Dataset]:
    folder = make_folder(tmp_path_factory.mktemp("photos"), range(COUNT))
    with running_daemon({"photos": folder}, cores=2.0) as daemon:
        yield hw.open(f"{daemon.serving.address}/photos")


class Run:
    """Plays a run over a link of `link` bytes a second; what is offloaded takes `late` times as long.

    With `cores` the store's steps take time too.
    """

    def __init__(self, data: hw.Dataset, auto: Auto = FRESH, cache: SampleCache | None = None) -> None:
        self.data, self.now, self.meter = data, 0.0, Meter()
        self.wire = 0.0  # seconds in which something came
        self.traffic = Traffic(lambda: self.wire)
        for store in data.store.stores if isinstance(data.store, ShardedStore) else (data.store,):
            assert isinstance(store, RemoteStore)
            store.traffic = self.traffic
        chain = Chain(STEPS, seed=1)
        self.cache, self.tasks = cache, list[Task]()
        self.planner = Planner(
            data, chain, auto, meter=self.meter, cores=2, cache=cache, clock=lambda: self.now
        )
        self.link, self.late, self.held = LINK, 1.0, 0.0
        self.waiting = "read"
        self.cores: float | None = None
        self.busy = [0.0, 0.0]
        self.png: set[int] = set()
        self.pauses: set[int] = set()
        self.stretches: list[Stretch] = []
        self.epoch = 0

    def peek(self, ahead: int) -> None:
        """Begin an epoch, and leave it."""
        tasks = (Task(span, self.data.index.ids[span], self.epoch) for span in self._spans(64))
        assigned = self.planner.assign(tasks)
        for _ in range(ahead):
            next(assigned)

    def _spans(self, batches: int) -> list[np.ndarray]:
        return [np.arange(begin, begin + BATCH) for begin in range(0, batches * BATCH, BATCH)]

    def play(self, batches: int, ahead: int = 4) -> list[str]:
        """Phases of the coming batches of an epoch, `ahead` of which are asked for before they are over."""
        index, phases = self.data.index, []
        tasks = (Task(span, index.ids[span], self.epoch, BATCH * SIZE) for span in self._spans(batches))
        assigned = self.planner.assign(tasks)
        under_way = [task for _, task in zip(range(ahead), assigned, strict=False)]
        while under_way:
            task = under_way.pop(0)
            self.tasks.append(task)
            phases.append("none" if task.plan is None else task.plan.phase)
            self.stretches += [] if task.plan is None else [task.plan]
            self._make(task)
            pause = 60.0 if len(phases) in self.pauses else 0.0
            self.now += pause
            self.planner.delivered(self.held + pause)
            under_way += [more for _, more in zip(range(1), assigned, strict=False)]
        self.epoch += 1
        return phases

    def _make(self, task: Task) -> None:
        ways = np.zeros(len(task.ids), np.uint8) if task.ways is None else task.ways
        seen = self._see(task.positions, ways, task.epoch)
        seconds = float(seen.bytes.sum()) / self.link * (self.late if ways.any() else 1.0)
        with self.traffic.awaiting(files=not ways.any()):
            self.wire += seconds
            self.traffic.count(int(seen.bytes.sum()))
        if self.cores is not None:
            seconds = self._overlap(seconds, float(seen.store_seconds.sum()) / self.cores)
        self.now += seconds
        self.meter.wait(self.waiting, max(0.0, seconds - self.held))
        self.now += max(0.0, self.held - seconds)
        if task.ways is not None:
            self.planner.see(task, seen)

    def _overlap(self, *seconds: float) -> float:
        """Until both link and store, which go on by themselves, have made a batch."""
        self.busy = [max(at, self.now - 1.0) + more for at, more in zip(self.busy, seconds, strict=True)]
        return max(0.0, max(self.busy) - self.now)

    def _see(self, positions: np.ndarray, ways: np.ndarray, epoch: int) -> Seen:
        count = len(ways)
        jpeg = np.array([position not in self.png for position in positions.tolist()])
        done = jpeg | ~np.array([way.codec in EXCERPTS for way in self.planner.ways])[ways]
        held = None if self.cache is None else self.cache.contains(positions)
        sent = np.where(done & (ways > 0), CUT, SIZE).astype(np.int64)
        return Seen(
            positions=positions,
            ids=self.data.index.ids[positions],
            epoch=epoch,
            ways=ways,
            done=done,
            bytes=sent if held is None else np.where(held, 0, sent),
            store_seconds=np.where(ways > 0, 2e-3, 0).astype(np.float32),
            trainer_seconds=np.full(count, 1e-3, np.float32),
            sizes=np.full((count, 2), 80, np.int32),
            able=jpeg,
            file_bytes=np.full(count, SIZE, np.int64),
            held=held,
        )


@pytest.fixture
def run(data: hw.Dataset, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Files have the size that these runs say they have."""
    monkeypatch.setattr(RemoteStore, "sizes", lambda self, positions: np.full(len(positions), SIZE))
    return lambda **options: Run(data, **options)


def test_ways_are_tried_first_and_then_it_is_planned(run: Callable[..., Run]) -> None:
    phases = run().play(40)
    assert phases[0] == "explore"
    assert phases[-1] == "plan"
    assert phases.index("plan") < 12


def test_stretches_grow(run: Callable[..., Run]) -> None:
    playing = run()
    playing.play(64)
    lengths = [e.measured.samples for e in playing.planner.logbook.stretches if e.phase == "plan"]
    assert lengths[:2] == [512, 1024]


def test_a_trainer_that_never_waits_is_left_alone(run: Callable[..., Run]) -> None:
    playing = run()
    playing.held = 5.0
    assert playing.play(40)[-1] == "link"
    assert not any(playing.planner.logbook.stretches[-1].ways[1:])
    playing.held = 0.0  # now it does
    assert "plan" in playing.play(64)


def test_a_plan_that_is_late_and_slower_than_files_is_given_up_for_a_while(run: Callable[..., Run]) -> None:
    playing = run()
    playing.play(64)
    playing.late = 6.0  # offloaded samples take longer than files now
    phases = [phase for _ in range(3) for phase in playing.play(64)]
    assert phases.count("guard") > phases.count("plan") / 4


def test_rests_grow_while_files_stay_quicker(run: Callable[..., Run]) -> None:
    playing = run()
    playing.play(64)
    playing.late = 6.0
    early = playing.play(64).count("plan")
    for _ in range(4):
        playing.play(64)
    assert playing.play(64).count("plan") <= early
    playing.late = 1.0
    for _ in range(8):
        phases = playing.play(64)
    assert phases.count("plan") > 40


def test_one_that_is_late_but_quicker_than_files_stays(run: Callable[..., Run]) -> None:
    playing = run()
    playing.play(64)
    playing.late = 2.0  # half as quick as was said, twice as quick as files, whatever the store does
    phases = [phase for _ in range(4) for phase in playing.play(64)]
    assert phases.count("guard") < phases.count("plan") / 8
    last = playing.planner.logbook.stretches[-1]
    assert last.rates.store_cores == pytest.approx(2.0, abs=0.06)
    assert sum(last.ways[1:]) > 0.9 * sum(last.ways)


def test_a_store_that_has_fewer_cores_than_it_says_is_found_out(run: Callable[..., Run]) -> None:
    """As where both ends share a machine."""
    playing = run()
    playing.play(64)
    playing.cores = 1.0
    for _ in range(10):
        playing.play(64)
    planned = [e for e in playing.planner.logbook.stretches if e.phase == "plan" and e.epoch > 6]
    paces = [entry.measured.seconds / entry.measured.samples for entry in planned]
    assert np.median(paces) < 0.95 * 2e-3  # what all samples take at the store
    assert np.median([entry.rates.store_cores for entry in planned]) == pytest.approx(1.0, abs=0.3)


def test_a_trainer_that_waits_for_its_own_steps_blames_no_store(run: Callable[..., Run]) -> None:
    playing = run()
    playing.play(64)
    playing.late, playing.waiting = 2.0, "steps"
    for _ in range(3):
        playing.play(64)
    assert playing.planner.logbook.stretches[-1].rates.store_cores == pytest.approx(2.0, abs=0.06)


def test_a_slower_link_is_noticed(run: Callable[..., Run]) -> None:
    playing = run()
    playing.play(64)
    playing.link = LINK / 4
    for _ in range(4):
        playing.play(64)
    assert playing.planner.logbook.stretches[-1].rates.link < LINK / 2


def test_a_cap_on_the_stores_cpu_is_kept(run: Callable[..., Run]) -> None:
    playing = run(auto=Auto(fresh=True, store_seconds=1e-3))
    playing.play(64)
    last = playing.planner.logbook.stretches[-1]
    assert last.predicted is not None
    assert 0 < last.predicted.store_seconds <= 1.001e-3 * last.predicted.samples


def test_no_excerpt_is_asked_for_of_a_file_that_has_none(run: Callable[..., Run]) -> None:
    playing = run(auto=Auto(fresh=True, codecs=["jpeg"]))
    playing.png = set(range(0, COUNT, 3))
    for _ in range(3):
        playing.play(64)
    last = playing.planner.logbook.stretches[-1]
    assert last.pushed_back == 0
    assert last.rates.store_cores == pytest.approx(2.0, abs=0.06)
    assert sum(last.ways[1:]) > 0.6 * sum(last.ways)


def test_a_loop_that_is_left_at_once_does_not_stop_the_trying(run: Callable[..., Run]) -> None:
    playing = run()
    for _ in range(3):
        playing.peek(11)
    assert playing.play(64)[-1] == "plan"


def test_a_pause_of_the_training_loop_is_not_the_plans_fault(run: Callable[..., Run]) -> None:
    playing = run()
    playing.play(64)
    before = playing.planner.logbook.stretches[-1].rates.trainer
    playing.pauses = {3, 20, 40}
    for _ in range(3):
        phases = playing.play(64)
        assert phases.count("guard") <= 4  # the usual look at the link
    assert playing.planner.logbook.stretches[-1].rates.trainer == pytest.approx(before, rel=0.5)


def test_a_quicker_link_is_noticed_under_a_plan(run: Callable[..., Run]) -> None:
    playing = run()
    playing.play(64)
    playing.link = 10 * LINK
    for _ in range(16):
        playing.play(64)
    assert playing.planner.logbook.stretches[-1].rates.link > 5 * LINK


def test_two_loops_at_once_do_no_harm(run: Callable[..., Run]) -> None:
    playing = run()
    playing.peek(4)
    playing.planner.delivered(0.0)
    playing.play(8)
    playing.planner.delivered(0.0)


def test_a_stretch_may_have_samples_of_one_store_only(run: Callable[..., Run], tmp_path: Path) -> None:
    """As stretches have in the order of the index."""
    parts = [make_folder(tmp_path / str(first), range(first, first + 1024)) for first in (0, 1024)]
    with running_daemon({"photos": parts[0]}) as one, running_daemon({"photos": parts[1]}) as two:
        playing = Run(hw.open([f"{daemon.serving.address}/photos" for daemon in (one, two)]))
        assert playing.play(32)[-1] == "plan"
    planned = [entry for entry in playing.planner.logbook.stretches if entry.phase == "plan"]
    assert any(len(np.unique(stretch.owners)) == 1 for stretch in playing.stretches if stretch.plans)
    assert len({entry.site for entry in planned}) == 2
    assert all(sum(entry.ways) for entry in planned)


def test_the_plan_of_an_epoch_is_kept(run: Callable[..., Run]) -> None:
    playing = run()
    for _ in range(2):
        playing.play(64)
    playing.planner.keep()
    key = playing.planner.logbook.key
    plan, logbook = EpochPlan.find(key, seed=1), Logbook.load(logbook_path(key))
    assert plan is not None
    assert (plan.key, plan.epoch, len(plan)) == (logbook.key, 1, COUNT)
    last = [entry for entry in logbook.stretches if entry.phase == "plan" and entry.epoch == 1]
    assert last
    assert list(plan.counts()) == [
        sum(column) for column in zip(*(entry.ways for entry in last), strict=True)
    ]
    (part,) = plan.sites.values()
    assert part.before.bytes == pytest.approx(sum(entry.none.bytes for entry in last if entry.none))
    assert part.after.bytes == pytest.approx(sum(entry.predicted.bytes for entry in last if entry.predicted))
    assert part.reason == last[-1].reason


def test_an_epoch_without_plans_has_an_empty_one(run: Callable[..., Run]) -> None:
    """An older one would tell of what is no longer so."""
    playing = run()
    playing.held = 5.0
    for _ in range(2):
        playing.play(16)
    playing.planner.keep()
    plan = EpochPlan.find(playing.planner.logbook.key, seed=1)
    assert plan is not None
    assert (plan.epoch, sum(plan.counts()), plan.sites) == (1, 0, {})


class Failing:
    """A policy with a defect."""

    def choose(self, work: object) -> NoReturn:
        raise ZeroDivisionError("a policy of no use")


def break_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "POLICIES", {**POLICIES, "hull": Failing})


def break_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(self: Profile, seen: Seen) -> None:
        raise ZeroDivisionError("a profile of no use")

    monkeypatch.setattr(Profile, "add", add)


@pytest.mark.parametrize("break_it", [break_policy, break_profile])
def test_a_planner_that_fails_costs_the_offloading_and_not_the_run(
    run: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    planner_failures: list[logging.LogRecord],
    break_it: Callable[[pytest.MonkeyPatch], None],
) -> None:
    playing = run()
    assert playing.play(64)[-1] == "plan"
    break_it(monkeypatch)
    phases = [phase for _ in range(2) for phase in playing.play(64)]
    assert len(phases) == 128
    assert set(phases[64:]) == {"none"}
    (record,) = planner_failures
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert "of no use" in playing.planner.failure
    playing.planner.keep()
    assert Logbook.load(logbook_path(playing.planner.logbook.key)).failure == playing.planner.failure
    planner_failures.clear()


def test_what_others_get_wrong_still_ends_the_run(run: Callable[..., Run]) -> None:
    def tasks() -> Iterator[Task]:
        yield Task(np.arange(4), np.arange(4))
        raise ZeroDivisionError("an order of no use")

    playing = run()
    with pytest.raises(ZeroDivisionError, match="an order"):
        list(playing.planner.assign(tasks()))
    assert not playing.planner.failure


def make_cache(data: hw.Dataset, *, held: slice = NOTHING, wanted: slice = NOTHING) -> SampleCache:
    """Room for everything; these are held, and of the others these are worth it."""
    cache = SampleCache(Cache(1 << 40), data.index, Chain(STEPS, seed=1))
    importance = np.zeros(COUNT, np.float32)
    importance[wanted] = 1
    cache.value(importance)
    cache.begin()
    positions = np.arange(COUNT)[held]
    cache.admit(positions, [b"a file"] * len(positions), ["files"] * len(positions))
    return cache


def ways_by_position(playing: Run) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for task in playing.tasks:
        assert task.ways is not None
        for position, way in zip(task.positions.tolist(), task.ways.tolist(), strict=True):
            found.setdefault(position, set()).add(way)
    return found


def test_what_a_cache_holds_is_no_part_of_the_load(run: Callable[..., Run], data: hw.Dataset) -> None:
    playing = run(cache=make_cache(data, held=slice(0, None, 2)))
    assert "plan" in playing.play(64)
    playing.play(64)
    ways = ways_by_position(playing)
    assert all(ways[position] == {0} for position in range(0, COUNT, 2))
    assert any(ways[position] != {0} for position in range(1, COUNT, 2))
    last = playing.planner.logbook.stretches[-1]
    assert last.none is not None
    assert last.none.bytes == pytest.approx(last.none.samples * SIZE / 2, rel=0.01)
    assert last.measured.bytes <= last.measured.samples * SIZE / 2
    assert last.pushed_back == 0
    assert sum(total.done for total in playing.planner.logbook.totals) == COUNT  # half of two epochs


def test_what_a_cache_wants_comes_as_a_file(run: Callable[..., Run], data: hw.Dataset) -> None:
    """Also while ways are tried: the crop of this epoch could not be held."""
    playing = run(cache=make_cache(data, wanted=slice(0, None, 2)))
    assert "plan" in playing.play(64)
    ways = ways_by_position(playing)
    whole = playing.planner.ways.index(hw.Offload(1)) if hw.Offload(1) in playing.planner.ways else 0
    assert all(ways[position] <= {0, whole} for position in range(0, COUNT, 2))
    assert any(ways[position] - {0, whole} for position in range(1, COUNT, 2))


def test_where_everything_is_held_nothing_is_planned(run: Callable[..., Run], data: hw.Dataset) -> None:
    playing = run(cache=make_cache(data, held=slice(None)))
    for _ in range(3):
        playing.play(64)
    assert all(ways == {0} for ways in ways_by_position(playing).values())
    assert playing.planner.failure == ""
