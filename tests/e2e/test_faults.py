"""Random faults on the link and in the store: every epoch is a permutation, every tensor bit for bit local.

`HEADWATER_SCHEDULES=start:stop` chooses the seeds, to repeat one or to share out a long run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from faults import Schedule
from headwater.data.indexcache import cache_folder
from headwater.loader.explorer import ENOUGH
from headwater.measure.logbook import Logbook
from headwater.store.client.status import status
from headwater.store.fleet import ShardedStore
from rigs import KINDS, SEED, STEPS, Kind, Rig, Truth, count_retries, load, make_parts, running_rig
from stores import StoreProcess, make_certificates

PLANNED = hw.Auto(codecs=("jpeg",), fresh=True)
"""With what a run without faults has learnt, so that there is a plan from the second epoch on."""
OFFLOADS = (
    None,
    hw.Offload(3),
    hw.Offload(2, "jpeg"),
    hw.Auto(fresh=True),
    PLANNED,
    hw.Offload(2, "zstd"),
    hw.Offload(2, "jpeg_progressive"),
)
"""In turn, by seed, as the datasets are. None reads a logbook from the cache, which all schedules share: what
another one has left there is no part of a seed."""
SHUFFLES: Mapping[str, bool | str] = {"photos": True, "rows": "blocks"}
"""Of each dataset that the stores serve."""
DATASETS = ("photos", "rows", "photos", "photos")
"""In turn, by seed: no divisor in common with the kinds of rigs or with offloads, so that each meets each."""
SECOND = 1_000_000  # added to the seed for a second store's faults
BLOCK = 100


def chosen(start: int, stop: int) -> range:
    """The seeds that were asked for, else these."""
    asked = os.environ.get("HEADWATER_SCHEDULES", "")
    return range(*map(int, asked.split(":"))) if asked else range(start, stop)


@dataclass(frozen=True)
class Ground:
    """Where schedules are played: a rig, and the truth of each of its datasets."""

    rig: Rig
    truths: Mapping[str, Truth]
    _logbooks: dict[str, Logbook] = field(default_factory=dict)

    def offload(self, seed: int, dataset: str) -> hw.Offload | hw.Auto | None:
        """What a schedule asks of the stores; before the first that plans come some epochs without faults."""
        wanted = OFFLOADS[seed % len(OFFLOADS)]
        if wanted is not PLANNED:
            return wanted
        if dataset not in self._logbooks:
            self._logbooks[dataset] = self._learn(dataset)
        return replace(PLANNED, logbook=self._logbooks[dataset])

    def _learn(self, dataset: str) -> Logbook:
        """In batches as long as an epoch, or ways would be tried on its last few samples only.

        A store that has no cores to spare for a way may leave it unknown.
        """
        with closing(self.rig.open_patiently(dataset)) as data:
            options: dict[str, Any] = {"batch_size": len(data), "shuffle": SHUFFLES[dataset], "seed": SEED}
            with closing(hw.DataLoader(data, STEPS, offload=PLANNED, progress=False, **options)) as loader:
                for _ in range(30):
                    list(loader)
                    if knows_all(loader):
                        break
                assert loader.logbook is not None
                return loader.logbook


def knows_all(loader: hw.DataLoader) -> bool:
    """Whether all ways are known, and a plan was made with them."""
    logbook = loader.logbook
    assert logbook is not None
    planned = any(stretch.phase == "plan" for stretch in logbook.stretches)
    return planned and min(way.done for way in logbook.totals) >= ENOUGH


@dataclass(frozen=True)
class Played:
    """What became of one schedule: requests that failed and were made up for, seconds, and what was wrong."""

    seed: int
    failures: int = 0
    seconds: float = 0.0
    error: str = ""


def play(seed: int, ground: Ground, *, seconds: float) -> Played:
    """Epochs for as long as the schedule lasts, and always a whole one after its last fault began."""
    schedules = [
        Schedule.random(seed + SECOND * number, seconds=seconds, longest_seconds=0.5 * seconds)
        for number in range(len(ground.rig.stores))
    ]
    begun = time.monotonic()
    try:
        failures = run_under(schedules, ground, seed)
        return Played(seed, failures, time.monotonic() - begun)
    except Exception as error:
        told = "\n".join([*map(str, schedules), f"{type(error).__name__}: {error}"])
        return Played(seed, 0, time.monotonic() - begun, told)


def run_under(schedules: Sequence[Schedule], ground: Ground, seed: int) -> int:
    rig, dataset = ground.rig, DATASETS[seed % len(DATASETS)]
    offload = ground.offload(seed, dataset)
    with ExitStack() as stack:
        playing = [
            stack.enter_context(schedule.apply(proxy, store))
            for schedule, proxy, store in zip(schedules, rig.proxies, rig.stores, strict=True)
        ]
        if seed % 3 == 0:  # fetch the index under faults as well
            for path in cache_folder().glob("remote-*.arrow"):
                path.unlink(missing_ok=True)
        data = rig.open_patiently(dataset)
        stack.callback(data.close)
        loader = load(data, workers=seed // 3 % 3, offload=offload, shuffle=SHUFFLES[dataset])
        stack.callback(loader.close)
        for epoch in count():
            last = all(one.done for one in playing)
            ground.truths[dataset].check(list(loader), epoch)
            assert not loader.stats().planning_failed
            if last:
                return count_retries(data.store)
        raise AssertionError("the schedule has no end")


def play_all(seeds: range, grounds: Sequence[Ground], *, seconds: float) -> list[Played]:
    """The kinds of rigs take the seeds in turn, and all kinds run at once."""

    def lane(kind: int) -> list[Played]:
        mine = [seed for seed in seeds if seed % len(grounds) == kind]
        return [play(seed, grounds[kind], seconds=seconds) for seed in mine]

    with ThreadPoolExecutor(len(grounds)) as pool:
        lanes = pool.map(lane, range(len(grounds)))
        return sorted((one for lane in lanes for one in lane), key=lambda one: one.seed)


def expect_all_well(played: Sequence[Played]) -> None:
    for one in played:
        print(f"seed {one.seed}: {one.failures} failures, {one.seconds:.1f} s")
    failed = [one for one in played if one.error]
    assert not failed, "\n\n".join(f"seed {one.seed}:\n{one.error}" for one in failed)
    # Some faults only delay, some strike while nothing is under way; most must have cost a request.
    hit = sum(one.failures > 0 for one in played)
    assert hit >= len(played) // 2, f"only {hit} of {len(played)} schedules hit a request"


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Ground]]:
    work = tmp_path_factory.mktemp("rigs")
    certificates = make_certificates(work / "certificates")
    parts = {shards: make_parts(work / f"in-{shards}", shards) for shards in {kind.shards for kind in KINDS}}
    truths = {shards: truths_of(some) for shards, some in parts.items()}
    made = [
        running_rig(parts[kind.shards], work / f"{number}", kind=kind, certificates=certificates)
        for number, kind in enumerate(KINDS)
    ]
    with ExitStack() as stack, ThreadPoolExecutor(len(made)) as pool:
        rigs = list(pool.map(stack.enter_context, made))
        yield [Ground(rig, truths[kind.shards]) for rig, kind in zip(rigs, KINDS, strict=True)]


def truths_of(parts: Sequence[Mapping[str, Path]]) -> dict[str, Truth]:
    return {
        dataset: Truth(*(part[dataset] for part in parts), shuffle=shuffle)
        for dataset, shuffle in SHUFFLES.items()
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_epoch_is_a_permutation_under_faults(grounds: list[Ground]) -> None:
    expect_all_well(play_all(chosen(0, 20), grounds, seconds=3.0))


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", chosen(0, 2000)[::BLOCK])
def test_it_is_one_under_two_thousand_schedules(first: int, grounds: list[Ground]) -> None:
    seeds = range(first, min(first + BLOCK, chosen(0, 2000).stop))
    expect_all_well(play_all(seeds, grounds, seconds=1.5))


@pytest.mark.slow
def test_the_rigs_are_what_the_schedules_are_for(grounds: list[Ground]) -> None:
    """Shards are a fleet and rows have blocks, else the schedules would tell nothing of them."""
    for ground, kind in zip(grounds, KINDS, strict=True):
        with closing(ground.rig.open_patiently("rows")) as data:
            blocks = data.blocks()
            assert blocks is not None
            assert len(blocks) > 10
            assert isinstance(data.store, ShardedStore) == (kind.shards > 1)


@pytest.mark.slow
def test_a_disk_that_fills_up_costs_lines_of_the_audit_log_only(grounds: list[Ground]) -> None:
    ground = grounds[KINDS.index(Kind())]
    (store,) = ground.rig.stores
    log = Path(store.words[store.words.index("--audit-log") + 1])
    with (
        closing(ground.rig.open_patiently()) as data,
        closing(check_epochs(data, ground.truths["photos"])) as epochs,
    ):
        store.fill()
        size, lost = log.stat().st_size, lost_lines(store)
        next(_ for _ in epochs if lost_lines(store) > lost)
        assert log.stat().st_size == size
        store.free()
        next(_ for _ in epochs if '"lines lost"' in log.read_text()[size:])


def check_epochs(data: hw.Dataset, truth: Truth, seconds: float = 30.0) -> Generator[None, None, None]:
    """One after the other, for as long as somebody wants more."""
    end = time.monotonic() + seconds
    with closing(load(data, workers=2)) as loader:
        for epoch in count():
            truth.check(list(loader), epoch)
            assert time.monotonic() < end, "what was waited for did not come"
            yield


def lost_lines(store: StoreProcess) -> int:
    return int(status(store.address)["metrics"]["headwater_audit_lost_total"])
