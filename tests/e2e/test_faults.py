"""Random faults on the link and in the store: every epoch is a permutation, every tensor bit for bit local.

`HEADWATER_SCHEDULES=start:stop` chooses the seeds, to repeat one or to share out a long run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

import pytest

import headwater as hw
from faults import Schedule
from headwater.data.indexcache import cache_folder
from headwater.store.client.remote import RemoteStore
from rigs import KINDS, Rig, Truth, load, make_folder, running_rig
from stores import make_certificates

OFFLOADS = (None, hw.Offload(3), hw.Offload(2, "zstd"))
SECOND = 1_000_000  # added to the seed for a second store's faults
BLOCK = 100


def chosen(start: int, stop: int) -> range:
    """The seeds that were asked for, else these."""
    asked = os.environ.get("HEADWATER_SCHEDULES", "")
    return range(*map(int, asked.split(":"))) if asked else range(start, stop)


@dataclass(frozen=True)
class Played:
    """What became of one schedule: requests that failed and were made up for, seconds, and what was wrong."""

    seed: int
    failures: int = 0
    seconds: float = 0.0
    error: str = ""


def play(seed: int, rig: Rig, truth: Truth, *, seconds: float) -> Played:
    """Epochs for as long as the schedule lasts, and always a whole one after its last fault began."""
    schedules = [
        Schedule.random(seed + SECOND * number, seconds=seconds, longest_seconds=0.5 * seconds)
        for number in range(len(rig.stores))
    ]
    begun = time.monotonic()
    try:
        failures = run_under(schedules, rig, truth, seed)
        return Played(seed, failures, time.monotonic() - begun)
    except Exception as error:
        told = "\n".join([*map(str, schedules), f"{type(error).__name__}: {error}"])
        return Played(seed, 0, time.monotonic() - begun, told)


def run_under(schedules: Sequence[Schedule], rig: Rig, truth: Truth, seed: int) -> int:
    with ExitStack() as stack:
        playing = [
            stack.enter_context(schedule.apply(proxy, store))
            for schedule, proxy, store in zip(schedules, rig.proxies, rig.stores, strict=True)
        ]
        if seed % 5 == 0:  # fetch the index under faults as well
            for path in cache_folder().glob("remote-*.arrow"):
                path.unlink(missing_ok=True)
        data = rig.open_patiently()
        stack.callback(data.close)
        loader = load(data, workers=seed // 3 % 3, offload=OFFLOADS[seed // 4 % 3])
        stack.callback(loader.close)
        for epoch in count():
            last = all(one.done for one in playing)
            truth.check(list(loader), epoch)
            if last:
                break
        assert isinstance(data.store, RemoteStore)
        return data.store.retries


def play_all(seeds: range, rigs: Sequence[Rig], truth: Truth, *, seconds: float) -> list[Played]:
    """A kind of rig has one seed in four; the four run at once."""

    def lane(kind: int) -> list[Played]:
        mine = [seed for seed in seeds if seed % len(rigs) == kind]
        return [play(seed, rigs[kind], truth, seconds=seconds) for seed in mine]

    with ThreadPoolExecutor(len(rigs)) as pool:
        return sorted(
            (one for lane in pool.map(lane, range(len(rigs))) for one in lane), key=lambda one: one.seed
        )


def expect_all_well(played: Sequence[Played]) -> None:
    for one in played:
        print(f"seed {one.seed}: {one.failures} failures, {one.seconds:.1f} s")
    failed = [one for one in played if one.error]
    assert not failed, "\n\n".join(f"seed {one.seed}:\n{one.error}" for one in failed)
    # Some faults only delay, some strike while nothing is under way; most must have cost a request.
    hit = sum(one.failures > 0 for one in played)
    assert hit >= len(played) // 2, f"only {hit} of {len(played)} schedules hit a request"


@pytest.fixture(scope="module")
def truth_and_rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Truth, list[Rig]]]:
    work = tmp_path_factory.mktemp("rigs")
    folder = make_folder(work / "photos")
    certificates = make_certificates(work / "certificates")
    with ExitStack() as stack:
        made = [
            running_rig(folder, work / f"{number}", kind=kind, certificates=certificates)
            for number, kind in enumerate(KINDS)
        ]
        with ThreadPoolExecutor(len(made)) as pool:
            rigs = list(pool.map(stack.enter_context, made))
        yield Truth(folder), rigs


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_epoch_is_a_permutation_under_faults(truth_and_rigs: tuple[Truth, list[Rig]]) -> None:
    truth, rigs = truth_and_rigs
    expect_all_well(play_all(chosen(0, 20), rigs, truth, seconds=3.0))


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", chosen(0, 2000)[::BLOCK])
def test_it_is_one_under_two_thousand_schedules(first: int, truth_and_rigs: tuple[Truth, list[Rig]]) -> None:
    truth, rigs = truth_and_rigs
    seeds = range(first, min(first + BLOCK, chosen(0, 2000).stop))
    expect_all_well(play_all(seeds, rigs, truth, seconds=1.5))
