"""A store that drains, fills its disk or loses a worker serves on, or says goodbye in time."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

import headwater as hw
from datasets import Photo, write_folder
from headwater.cli.proxy import Fault, Proxy, Shape
from headwater.errors import StoreLost
from headwater.store.client.remote import RemoteStore
from headwater.store.client.status import status
from pictures import save
from rigs import LINK, Rig, Truth, load, make_folder
from stores import StoreProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

DRAIN = 4.0
ENDING = 3.0
"""Seconds that a store may take to end once it has drained, on a machine that is busy."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def truth(folder: Path) -> Truth:
    return Truth(folder)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise, which PNG does not make smaller: a reply that no buffer on the way holds."""
    rng = np.random.default_rng(1)
    photos = [
        Photo(0, f"{number}", "png", save(rng.integers(0, 256, (250, 250, 3), np.uint8), "PNG"))
        for number in range(7)
    ]
    return write_folder(tmp_path_factory.mktemp("large"), photos)


@contextmanager
def running(folder: Path, *, shape: Shape = LINK, **flags: object) -> Iterator[Rig]:
    with (
        StoreProcess({"photos": folder}, **flags) as store,
        Proxy(("127.0.0.1", store.port), shape=shape) as proxy,
    ):
        yield Rig([store], [proxy])


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "store.toml"
    path.write_text(f"drain_seconds = {DRAIN}\n")
    return path


def test_a_store_that_drains_in_mid_epoch_loses_nothing(folder: Path, truth: Truth, settings: Path) -> None:
    with running(folder, config=settings) as rig, closing(rig.open(deadline_seconds=2.0)) as data:
        batches = iter(load(data, workers=2))
        found = [next(batches)]
        begun = time.monotonic()
        ended = rig.stores[0].terminate()
        assert ended.code == 0
        assert time.monotonic() - begun < DRAIN + ENDING
        assert "cut off" not in ended.stderr
        rig.stores[0].restart()
        truth.check([*found, *batches], 0)


def test_a_reply_that_is_on_its_way_arrives_although_the_store_drains(large: Path, settings: Path) -> None:
    settings.write_text("drain_seconds = 30\n")
    with (
        running(large, shape=Shape(bits_per_second=4e6), config=settings) as rig,
        closing(rig.open(deadline_seconds=20.0)) as data,
        ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(data.store.read, np.arange(len(data)))
        wait_for_request(rig.stores[0])
        assert rig.stores[0].terminate().code == 0
        rig.stores[0].restart()
        assert len(answer.result(60)) == len(data)
        assert isinstance(data.store, RemoteStore)
        assert not data.store.retries


def test_a_second_signal_ends_a_store_that_waits_for_a_client(large: Path, settings: Path) -> None:
    settings.write_text("drain_seconds = 60\n")
    with running(large, shape=Shape(), config=settings) as rig:
        store = rig.stores[0]
        with closing(rig.open(deadline_seconds=30.0, give_up_seconds=0.5)) as data:
            rig.proxies[0].inject(Fault("pause", "down"))
            with asking_for_all(data):
                try:
                    wait_for_request(store)
                    store.process.terminate()
                    with pytest.raises(subprocess.TimeoutExpired):
                        store.process.wait(1.0)
                    assert end_with_signals(store) in (1, -signal.SIGTERM)
                finally:
                    store.kill()
                    rig.proxies[0].cut()


def test_a_client_that_stalls_does_not_keep_a_store_from_ending(large: Path, settings: Path) -> None:
    settings.write_text("drain_seconds = 1\n")
    with running(large, shape=Shape(), config=settings) as rig:
        store = rig.stores[0]
        with closing(rig.open(deadline_seconds=30.0, give_up_seconds=0.5)) as data:
            rig.proxies[0].inject(Fault("pause", "down"))
            with asking_for_all(data):
                wait_for_request(store)
                store.process.terminate()
                try:
                    assert store.process.wait(1.0 + ENDING) == 0
                finally:
                    store.kill()
                    rig.proxies[0].cut()


def end_with_signals(store: StoreProcess) -> int | None:
    """A signal now and then, since two that come together may count as one."""
    for _ in range(4):
        store.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return store.process.wait(0.5)
    return None


@contextmanager
def asking_for_all(data: hw.Dataset) -> Iterator[None]:
    """Somebody whose one request is answered with more than fits on the way, until the store is lost."""
    errors: list[Exception] = []

    def ask() -> None:
        try:
            data.store.read(np.arange(len(data)))
        except StoreLost as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert errors


def wait_for_request(store: StoreProcess, seconds: float = 10.0) -> None:
    """Until the store has begun to answer a request for samples."""
    end = time.monotonic() + seconds
    while "'read'" not in str(status(store.address)["metrics"]["headwater_requests_total"]):
        assert time.monotonic() < end, "the request did not come"


def workers_of(store: StoreProcess) -> list[psutil.Process]:
    children = psutil.Process(store.pid).children(recursive=True)
    return [child for child in children if "headwater.store.server.worker" in child.cmdline()]


@pytest.mark.parametrize("offload", [hw.Offload(3), hw.Offload(2, "zstd")])
def test_a_worker_that_is_killed_costs_no_sample(folder: Path, truth: Truth, offload: hw.Offload) -> None:
    with running(folder) as rig, closing(rig.open(deadline_seconds=5.0)) as data:
        batches = iter(load(data, workers=2, offload=offload))
        found = [next(batches)]
        (worker,) = workers_of(rig.stores[0])
        worker.kill()
        truth.check([*found, *batches], 0)
        worker.wait(5.0)
        truth.check(list(load_epoch(data, 1, offload)), 1)
        (another,) = workers_of(rig.stores[0])
        assert another.pid != worker.pid


def load_epoch(data: hw.Dataset, epoch: int, offload: hw.Offload) -> hw.DataLoader:
    loader = load(data, workers=2, offload=offload)
    loader.set_epoch(epoch)
    return loader


def test_a_full_disk_costs_the_audit_log_only(folder: Path, truth: Truth) -> None:
    with running(folder, audit_log="/dev/full") as rig, closing(rig.open()) as data:
        truth.check(list(load(data, workers=2)), 0)
        ended = rig.stores[0].terminate()
    assert ended.code == 0
    assert "audit log /dev/full cannot be written (No space left on device)" in ended.stderr


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for one page."""
    place = tmp_path / "full"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def no_disk(tmp_path: Path) -> Path:
    """A folder that cannot be made, for root neither."""
    (tmp_path / "file").touch()
    return tmp_path / "file" / "cache"


@pytest.mark.parametrize("place", ["full_disk", "no_disk"])
def test_a_cache_that_cannot_be_written_is_done_without(
    place: str,
    folder: Path,
    truth: Truth,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the store and at the client."""
    cache: Path = request.getfixturevalue(place)
    monkeypatch.setenv("HEADWATER_CACHE", str(cache))
    with running(folder, environment={"HEADWATER_CACHE": str(cache)}) as rig:
        assert "cannot keep the index" in rig.stores[0].stderr
        for epoch in range(2):
            with closing(rig.open()) as data:
                truth.check(list(load_epoch(data, epoch, hw.Offload(0))), epoch)
    assert caplog.text.count("the index cannot be kept") == 2
    assert not list(cache.parent.rglob("*.arrow*")), "half an index was left"
