"""A store that stops or dies, for a while or for good: noticed in time, named, and nothing is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.cli.proxy import Shape
from headwater.errors import StoreLost
from headwater.loader.batch import Batch
from headwater.store.client.remote import RemoteStore
from rigs import Kind, Rig, Truth, load, make_folder, running_rig
from stores import make_certificates

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

DEADLINE = 1.0
NOTICED = DEADLINE + 0.5
BACK = 5.0
"""Seconds within which a store that is back is used again."""
CRAWL = Shape(bits_per_second=2e4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def truth(folder: Path) -> Truth:
    return Truth(folder)


@pytest.fixture(scope="module")
def shared(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    work = tmp_path_factory.mktemp("pair")
    certificates = make_certificates(work)
    with running_rig(
        [{"photos": folder}], work, kind=Kind(copies=2), certificates=certificates, shape=Shape()
    ) as rig:
        yield rig


@pytest.fixture
def pair(shared: Rig) -> Iterator[Rig]:
    """Two replicas; whatever a test does to them is mended."""
    yield shared
    for store, proxy in zip(shared.stores, shared.proxies, strict=True):
        store.resume()
        proxy.heal()
        proxy.reshape(Shape())
        if store.process.poll() is not None:
            store.restart()


@pytest.fixture
def single(pair: Rig) -> Rig:
    return Rig(pair.stores[:1], pair.proxies[:1])


@contextmanager
def loading(rig: Rig, *, workers: int = 2, **link: Any) -> Iterator[hw.DataLoader]:
    """A loader on the rig, with few batches ahead so that an outage is met soon."""
    with closing(rig.open(deadline_seconds=DEADLINE, **link)) as data:
        loader = load(data, workers=workers, prefetch_factor=1, prefetch_bytes=1)
        with closing(loader):
            yield loader


def store_of(loader: hw.DataLoader) -> RemoteStore:
    assert isinstance(loader.dataset.store, RemoteStore)
    return loader.dataset.store


class Taken:
    """The batches of an epoch, and when each came."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._source = batches
        self.batches: list[Batch] = []
        self._times = [time.monotonic()]

    def one(self) -> None:
        self.batches.append(next(self._source))
        self._times.append(time.monotonic())

    def rest(self) -> None:
        for batch in self._source:
            self.batches.append(batch)
            self._times.append(time.monotonic())

    @property
    def longest(self) -> float:
        """Seconds of the longest wait for a batch."""
        return max(later - earlier for earlier, later in pairwise(self._times))

    def first_after(self, moment: float) -> float:
        """Seconds from that moment to the first batch after it."""
        return min(when for when in self._times if when > moment) - moment

    @property
    def since(self) -> float:
        """Seconds since the last one came."""
        return time.monotonic() - self._times[-1]


@contextmanager
def later(seconds: float, call: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(seconds, call)
    timer.start()
    try:
        yield
    finally:
        timer.join()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stopped_store_is_noticed_and_its_replica_takes_over(pair: Rig, truth: Truth, workers: int) -> None:
    before = [proxy.bytes_down for proxy in pair.proxies]
    with loading(pair, workers=workers, hedge=False) as loader:
        truth.check(list(loader), 0)
        taken = Taken(iter(loader))
        taken.one()
        busiest = max(range(2), key=lambda number: pair.proxies[number].bytes_down - before[number])
        pair.stores[busiest].suspend()
        taken.rest()
        truth.check(taken.batches, 1)
        assert DEADLINE * 0.9 < taken.longest < NOTICED


@pytest.mark.parametrize("workers", [0, 2])
def test_a_store_that_is_stopped_for_a_while_costs_time_only(single: Rig, truth: Truth, workers: int) -> None:
    with loading(single, workers=workers) as loader:
        taken = Taken(iter(loader))
        taken.one()
        single.stores[0].suspend()
        with later(1.5 * DEADLINE, single.stores[0].resume):
            taken.rest()
        truth.check(taken.batches, 0)
        assert taken.longest > DEADLINE
        assert store_of(loader).retries


@pytest.mark.parametrize("workers", [0, 2])
def test_a_lost_store_is_named_and_the_run_resumes(single: Rig, truth: Truth, workers: int) -> None:
    with loading(single, workers=workers, give_up_seconds=DEADLINE) as loader:
        taken = Taken(iter(loader))
        taken.one()
        single.stores[0].suspend()
        with pytest.raises(StoreLost, match="'photos', position") as lost:
            taken.rest()
        assert taken.since < NOTICED
        state = loader.state_dict()
        assert lost.value.dataset == "photos"
        assert lost.value.store == f"127.0.0.1:{single.proxies[0].port}"
        expected = loader.dataset.index.ids[lost.value.position]
        single.stores[0].resume()
        loader.load_state_dict(state)
        rest = list(loader)
        truth.check([*taken.batches, *rest], 0)
        assert expected in rest[0].ids
    with loading(single) as another:
        another.load_state_dict(state)
        truth.check(list(another), 0, first=len(taken.batches))


@pytest.mark.parametrize("workers", [0, 2])
def test_two_stopped_replicas_cost_time_until_one_returns(pair: Rig, truth: Truth, workers: int) -> None:
    with loading(pair, workers=workers) as loader:
        taken = Taken(iter(loader))
        taken.one()
        for store in pair.stores:
            store.suspend()
        back: list[float] = []

        def bring_back() -> None:
            pair.stores[1].resume()
            back.append(time.monotonic())

        with later(2.5 * DEADLINE, bring_back):
            taken.rest()
        truth.check(taken.batches, 0)
        assert all(replica.failures for replica in store_of(loader).replicas.all)
        assert taken.longest > 2 * DEADLINE
        assert taken.first_after(back[0]) < BACK


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_two_lost_replicas_are_named_and_the_run_resumes_on_one(
    pair: Rig, truth: Truth, workers: int, attempts: int
) -> None:
    # A request gives up with the last attempt that begins before the limit.
    limit = (attempts - 0.5) * DEADLINE
    with loading(pair, workers=workers, give_up_seconds=limit) as loader:
        taken = Taken(iter(loader))
        taken.one()
        for store in pair.stores:
            store.suspend()
        with pytest.raises(StoreLost, match="'photos', position") as lost:
            taken.rest()
        assert taken.since < attempts * NOTICED
        state = loader.state_dict()
        assert lost.value.dataset == "photos"
        places = [f"127.0.0.1:{proxy.port}" for proxy in pair.proxies]
        assert sorted(lost.value.store.split(", ")) == sorted(places)
        expected = loader.dataset.index.ids[lost.value.position]
    pair.stores[1].resume()
    with loading(pair, workers=workers) as another:
        another.load_state_dict(state)
        rest = list(another)
        truth.check(rest, 0, first=len(taken.batches))
        assert expected in rest[0].ids


def test_a_killed_store_is_noticed_at_once(pair: Rig, truth: Truth) -> None:
    with loading(pair) as loader:
        taken = Taken(iter(loader))
        taken.one()
        pair.stores[0].kill()
        taken.rest()
        truth.check(taken.batches, 0)
        assert taken.longest < 1.0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_restarted_store_is_used_soon_after_it_is_back(single: Rig, truth: Truth, workers: int) -> None:
    with loading(single, workers=workers) as loader:
        taken = Taken(iter(loader))
        taken.one()
        back: list[float] = []
        single.stores[0].kill()

        def bring_back() -> None:
            single.stores[0].restart()
            back.append(time.monotonic())

        with later(0.0, bring_back):
            taken.rest()
        truth.check(taken.batches, 0)
        assert taken.first_after(back[0]) < BACK


def test_a_replica_that_returns_is_used_again(pair: Rig, truth: Truth) -> None:
    with closing(pair.open(deadline_seconds=DEADLINE)) as data, closing(load(data, workers=2)) as loader:
        truth.check(list(loader), 0)
        pair.stores[0].kill()
        truth.check(list(loader), 1)
        pair.stores[0].restart()
        back, before = time.monotonic(), pair.proxies[0].bytes_down
        while pair.proxies[0].bytes_down - before < 20_000:
            assert time.monotonic() - back < BACK
            truth.check(list(loader), loader.epoch - 1)


def test_a_crawling_replica_is_hedged_and_then_left_alone(pair: Rig, truth: Truth) -> None:
    with closing(pair.open(deadline_seconds=20.0)) as data, closing(load(data, workers=2)) as loader:
        for epoch in range(8):  # one request in ten may be asked twice, also of those that all went well
            truth.check(list(loader), epoch)
        replicas = store_of(loader).replicas
        pair.proxies[0].reshape(CRAWL)
        begun, hedged, asked = time.monotonic(), replicas.hedged, replicas.asked
        for epoch in range(8, 12):
            truth.check(list(loader), epoch)
        # One reply takes ten seconds at a crawl.
        assert time.monotonic() - begun < 5.0
        assert replicas.hedged > hedged
        assert replicas.hedged <= 1 + 0.1 * replicas.asked
        assert replicas.asked - asked >= 4 * 9
