"""Which resource is the slowest, with a real store, a link that is slow indeed, and a step that sleeps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater import transforms as T
from headwater.cli.proxy import Proxy, Shape
from headwater.errors import WrongUse
from stores import running_daemon

BATCH = 6
STEPS = T.Compose([T.RandomCrop(32, pad_if_needed=True), T.RandomHorizontalFlip()])
SLEEP = 0.02  # seconds a sample
LINK = 2e6  # bits a second


@pytest.fixture(scope="module")
def address(photo_folder: Path) -> Iterator[str]:
    with running_daemon({"photos": photo_folder}) as daemon:
        yield daemon.serving.address


@pytest.fixture
def data(address: str) -> Iterator[hw.Dataset]:
    dataset = hw.open(f"{address}/photos")
    yield dataset
    dataset.close()


def make_loader(data: hw.Dataset, offload: str | hw.Auto | hw.Offload | None = None) -> hw.DataLoader:
    return hw.DataLoader(data, STEPS, batch_size=BATCH, shuffle=True, num_workers=2, offload=offload)


def sleep(batch: hw.Batch) -> None:
    time.sleep(SLEEP * len(batch))


def pass_by(batch: hw.Batch) -> None:
    """No training at all."""


@pytest.mark.parametrize("offload", [None, hw.Auto(fresh=True), hw.Offload(2)], ids=["none", "auto", "fixed"])
def test_a_step_that_sleeps_is_the_bottleneck(data: hw.Dataset, offload: hw.Auto | hw.Offload | None) -> None:
    verdict = hw.profile(make_loader(data, offload), sleep, samples=60)
    assert verdict.bottleneck == "trainer"
    assert verdict.samples == 60
    trainer = verdict.resources["trainer"]
    assert trainer.rate == pytest.approx(1 / trainer.seconds)
    assert SLEEP <= trainer.seconds < 2 * SLEEP
    assert verdict.seconds >= SLEEP
    measured = {"trainer", "trainer CPU", "disk", "store CPU"}
    # a store that cuts every sample shows nothing of the link alone
    assert set(verdict.resources) == (measured if isinstance(offload, hw.Offload) else measured | {"link"})
    assert verdict.resources["disk"].at_least


def test_a_slow_link_is_the_bottleneck(address: str) -> None:
    port = int(address.rpartition(":")[2])
    with Proxy(("127.0.0.1", port), shape=Shape(bits_per_second=LINK)) as proxy:
        data = hw.open(f"grpc://127.0.0.1:{proxy.port}/photos")
        verdict = hw.profile(make_loader(data), pass_by, samples=100)
        data.close()
    assert verdict.bottleneck == "link"
    assert "a link " in verdict.advice
    link = verdict.resources["link"]
    assert LINK / 8 * 0.5 < link.rate < LINK / 8 * 1.1
    assert link.seconds * link.rate == pytest.approx(float(data.sizes.mean()), rel=0.3)


def test_rates_are_those_of_the_plans_if_there_are_any(data: hw.Dataset) -> None:
    loader = make_loader(data, hw.Auto(fresh=True))
    verdict = hw.profile(loader, pass_by, samples=1500)
    assert loader.logbook is not None
    last = loader.logbook.stretches[-1].rates
    assert last.link > 0
    assert verdict.resources["link"].rate == last.link
    assert verdict.resources["store CPU"].rate == last.store_cores
    assert verdict.resources["trainer CPU"].rate == 2


def test_local_data_has_a_disk_and_no_link(photo_folder: Path) -> None:
    data = hw.open(photo_folder)
    verdict = hw.profile(make_loader(data), sleep, samples=60)
    assert verdict.bottleneck == "trainer"
    assert set(verdict.resources) == {"trainer", "trainer CPU", "disk"}
    assert verdict.resources["disk"].rate > 0


def test_without_training_local_data_waits_for_something_else(photo_folder: Path) -> None:
    verdict = hw.profile(make_loader(hw.open(photo_folder)), pass_by, samples=60)
    assert verdict.bottleneck in ("trainer CPU", "disk")


def test_without_workers_there_is_one_reader(photo_folder: Path) -> None:
    loader = hw.DataLoader(hw.open(photo_folder), STEPS, batch_size=BATCH, num_workers=0)
    verdict = hw.profile(loader, pass_by, samples=20)
    assert not verdict.resources["disk"].at_least
    assert verdict.resources["trainer CPU"].rate == 1


@pytest.mark.parametrize("left_early", [False, True])
def test_the_loader_stands_where_it_stood(photo_folder: Path, left_early: bool) -> None:
    probed, other = (make_loader(hw.open(photo_folder)) for _ in range(2))
    for loader in (probed, other) if left_early else ():
        next(iter(loader))
    hw.profile(probed, pass_by, samples=50)
    expected = [(batch.epoch, batch.ids.tolist()) for batch in other]
    assert [(batch.epoch, batch.ids.tolist()) for batch in probed] == expected


def test_a_step_that_fails_leaves_the_loader_where_it_stood(photo_folder: Path) -> None:
    def fail(batch: hw.Batch) -> None:
        raise ZeroDivisionError

    loader = make_loader(hw.open(photo_folder))
    before = loader.state_dict()
    with pytest.raises(ZeroDivisionError):
        hw.profile(loader, fail)
    assert loader.state_dict() == before


def test_nothing_to_measure_is_wrong_use(photo_folder: Path) -> None:
    data = hw.open(photo_folder)
    with pytest.raises(WrongUse, match="samples is 0"):
        hw.profile(make_loader(data), pass_by, samples=0)
    loader = hw.DataLoader(data, STEPS, batch_size=10 * len(data), drop_last=True)
    with pytest.raises(WrongUse, match="gives no samples"):
        hw.profile(loader, pass_by)
