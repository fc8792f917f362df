"""Shards as one dataset: the same samples as undivided, whatever the order of the stores, and what fails."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headwater as hw
from datasets import Photo, write_folder, write_parquet, write_tar
from headwater import transforms as T
from headwater.cli.proxy import Proxy
from headwater.data.pipeline import Pipeline
from headwater.engine.chain import Chain
from headwater.engine.fetching import Fetched, Wanted
from headwater.errors import DatasetError, DatasetStale, Refused, StateMismatch, StoreLost
from headwater.plan.offload import Offload
from headwater.store.client.errand import Abandoned
from headwater.store.client.link import Link
from headwater.store.dataset import Dataset
from headwater.store.fleet import ShardedReader, ShardedStore
from headwater.store.local import LocalStore
from headwater.store.server.config import DatasetConfig, ServeConfig
from headwater.store.server.daemon import Daemon

TRANSFORM = T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)])
RAW = Chain(Pipeline(()))
PATIENCE_SECONDS = 20.0


def load(data: hw.Dataset, **options: Any) -> hw.DataLoader:
    settings: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 9, "num_workers": 2}
    return hw.DataLoader(data, TRANSFORM, **(settings | options))


def by_id(loader: hw.DataLoader) -> dict[int, tuple[torch.Tensor, int]]:
    """Each sample of an epoch once."""
    found: dict[int, tuple[torch.Tensor, int]] = {}
    for batch in loader:
        for id, image, label in zip(batch.ids.tolist(), batch.inputs, batch.targets.tolist(), strict=True):
            assert id not in found
            found[id] = (image, label)
    loader.close()
    return found


def assert_same(one: hw.DataLoader, other: hw.DataLoader) -> None:
    expected, found = by_id(one), by_id(other)
    assert found.keys() == expected.keys()
    for id, (image, label) in expected.items():
        assert torch.equal(found[id][0], image)
        assert found[id][1] == label


def part_of(photos: Sequence[Photo], number: int) -> list[Photo]:
    """One of three parts of differing sizes, so that a mistake in an offset cannot hide."""
    bounds = [0, len(photos) // 6, len(photos) // 2, len(photos)]
    return list(photos[bounds[number] : bounds[number + 1]])


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, photos: list[Photo]) -> list[Path]:
    """`photo_folder` in three parts; every class is in every part."""
    root = tmp_path_factory.mktemp("shards")
    return [write_folder(root / f"part-{number}", part_of(photos, number)) for number in range(3)]


def stores_of(paths: Sequence[Path], **options: Any) -> list[Any]:
    return [hw.open(path, **options).store for path in paths]


@pytest.fixture
def fleet(shards: list[Path]) -> Iterator[hw.Dataset]:
    dataset = Dataset(ShardedStore(stores_of(shards)))
    yield dataset
    dataset.close()


# --- the same samples as undivided


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_are_those_of_the_undivided_folder(
    fleet: hw.Dataset, photo_folder: Path, shuffle: bool, workers: int
) -> None:
    whole = hw.open(photo_folder)
    assert sorted(fleet.ids.tolist()) == sorted(whole.ids.tolist())
    assert fleet.classes == whole.classes
    options = {"shuffle": shuffle, "num_workers": workers}
    assert_same(load(whole, **options), load(fleet, **options))


def test_samples_come_in_the_order_asked_for(fleet: hw.Dataset, photo_folder: Path) -> None:
    whole = hw.open(photo_folder)
    positions = np.random.default_rng(3).permutation(len(fleet))
    asked = fleet.ids[positions]
    there = whole.index.position_of(asked)
    assert list(map(bytes, fleet.store.read(positions))) == list(map(bytes, whole.store.read(there)))
    heads = fleet.store.read_heads(positions, 9)
    assert list(map(bytes, heads)) == list(map(bytes, whole.store.read_heads(there, 9)))
    assert fleet.store.sizes(positions).tolist() == whole.store.sizes(there).tolist()
    assert [fleet.store.key(p) for p in positions.tolist()] == [whole.store.key(p) for p in there.tolist()]
    assert fleet.select(asked).pixel_sizes().tolist() == whole.select(asked).pixel_sizes().tolist()
    assert list(fleet.store.read(positions[:0])) == []


def test_order_of_the_stores_does_not_matter(shards: list[Path]) -> None:
    stores = stores_of(shards)
    one, two = ShardedStore(stores), ShardedStore([stores[2], stores[0], stores[1]])
    assert one.index.version == two.index.version
    assert one.index.ids.tolist() == two.index.ids.tolist()
    assert one.uri == two.uri
    assert set(one.uri.split("\n")) == {store.uri for store in stores}
    first = [batch.ids.tolist() for batch in load(Dataset(one))]
    assert first == [batch.ids.tolist() for batch in load(Dataset(two))]


def test_an_epoch_resumes_on_a_fleet_named_in_another_order(shards: list[Path], fleet: hw.Dataset) -> None:
    whole = [batch.ids.tolist() for batch in load(fleet)]
    loader = load(fleet)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    resumed = load(Dataset(ShardedStore(stores_of(shards[::-1]))))
    resumed.load_state_dict(loader.state_dict())
    assert [batch.ids.tolist() for batch in resumed] == whole[2:]
    with pytest.raises(StateMismatch):
        load(Dataset(ShardedStore(stores_of(shards[:2])))).load_state_dict(loader.state_dict())


def test_parts_of_a_fleet(fleet: hw.Dataset, photo_folder: Path) -> None:
    whole = hw.open(photo_folder)
    chosen = fleet.ids[::5]
    assert_same(load(whole.select(chosen)), load(fleet.select(chosen)))
    bees = fleet.filter(labels=["bee"])
    assert set(bees.ids.tolist()) == set(whole.filter(labels=["bee"]).ids.tolist())
    for mine, theirs in zip(fleet.split(0.5, 0.5, seed=4), whole.split(0.5, 0.5, seed=4), strict=True):
        assert set(mine.ids.tolist()) == set(theirs.ids.tolist())
        assert_same(load(theirs), load(mine))


def test_stores_that_share_samples_are_named(shards: list[Path], photos: list[Photo], tmp_path: Path) -> None:
    again = write_folder(tmp_path / "again", photos[5:9])
    with pytest.raises(DatasetError) as caught:
        ShardedStore(stores_of([*shards, again]))
    text = str(caught.value)
    assert str(again) in text
    assert "share" in text
    assert "(replicas)" in text
    assert sum(str(shard) in text for shard in shards) == 1


def test_parquet_shards_are_shuffled_in_blocks(photos: list[Photo], tmp_path: Path) -> None:
    paths = [write_parquet(tmp_path / f"{number}.parquet", part_of(photos, number)) for number in range(3)]
    data = Dataset(ShardedStore(stores_of(paths)))
    assert sorted(data.columns) == ["bytes", "camera", "id", "label", "number"]
    assert sorted(data.columns["number"].tolist()) == list(range(len(photos)))
    found = by_id(load(data, shuffle="blocks"))
    assert sorted(found) == sorted(data.ids.tolist())
    data.close()


# --- fields


def write_captions(path: Path, photos: Sequence[Photo]) -> Path:
    members = [
        (f"{photo.name}.{extension}", data)
        for photo in photos
        for extension, data in ((photo.suffix, photo.data), ("txt", f"photo {photo.name}".encode()))
    ]
    return write_tar(path, members)


@pytest.fixture
def captioned(tmp_path: Path, photos: list[Photo]) -> list[Path]:
    return [write_captions(tmp_path / f"{number}.tar", part_of(photos, number)) for number in range(3)]


def test_fields_stay_with_their_samples(captioned: list[Path]) -> None:
    data = Dataset(ShardedStore(stores_of(captioned, fields=["txt"])))
    keys = dict(zip(data.ids.tolist(), data.index.keys.to_pylist(), strict=True))
    seen = 0
    for batch in load(data):
        for id, text in zip(batch.ids.tolist(), batch.targets["txt"], strict=True):
            name = text.decode() if isinstance(text, bytes) else text
            assert name.removeprefix("photo ") in keys[id]
            seen += 1
    assert seen == len(data)
    positions = np.arange(len(data))[::-1]
    assert len(data.store.read_fields(positions)["txt"]) == len(data)
    data.close()


def test_stores_with_other_fields_are_refused_at_the_first_batch_of_both(captioned: list[Path]) -> None:
    stores = [*stores_of(captioned[:2], fields=["txt"]), *stores_of(captioned[2:])]
    data = Dataset(ShardedStore(stores))
    with pytest.raises(DatasetError, match=r"fields txt|no fields.*serve all with the same fields"):
        list(load(data, shuffle=False))
    with pytest.raises(DatasetError, match="serve all with the same fields"):
        data.store.read_fields(np.arange(len(data)))


# --- shards that fail, or take their time


class Troubled:
    """A store whose reads do what a test wants before they read."""

    def __init__(self, store: LocalStore, trouble: Callable[[np.ndarray], None]) -> None:
        self._store, self._trouble = store, trouble
        self.abandoned = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, positions: np.ndarray) -> Sequence[Any]:
        self._trouble(positions)
        return self._store.read(positions)

    def reader(self, chain: Chain, offload: Offload | None) -> Troubled:
        return self

    def fetch(self, wanted: Wanted) -> Fetched:
        self._trouble(wanted.positions)
        return self._store.fetch(wanted)

    def abandon(self) -> None:
        self.abandoned = True


def troubled(shards: Sequence[Path], troubles: Mapping[int, Callable[[np.ndarray], None]]) -> ShardedStore:
    """A fleet whose n-th store in the fleet's own order has the n-th trouble."""
    stores = sorted(stores_of(shards), key=lambda store: store.index.version)
    return ShardedStore([Troubled(s, troubles[n]) if n in troubles else s for n, s in enumerate(stores)])


def all_of(store: ShardedStore) -> Wanted:
    return Wanted(np.arange(len(store.index)), store.index.ids)


def test_stores_are_read_side_by_side(shards: list[Path]) -> None:
    """One after the other they would wait for each other in vain."""
    together = threading.Barrier(3, timeout=PATIENCE_SECONDS)

    def meet(positions: np.ndarray) -> None:
        together.wait()

    store = troubled(shards, {0: meet, 1: meet, 2: meet})
    found = store.reader(RAW, []).fetch(all_of(store))
    assert len(found.values) == len(store.index)
    assert found.bytes_moved == int(store.index.sizes.sum())
    assert found.done is None
    assert not any(value is None for value in store.read(np.arange(len(store.index))))
    store.close()


def test_a_lost_shard_is_raised_at_once_with_the_position_in_the_whole(shards: list[Path]) -> None:
    held = threading.Event()

    def lose(positions: np.ndarray) -> None:
        at = int(positions[0])
        raise StoreLost(f"no answer (position {at})", store="s", dataset="d", position=at)

    def hang(positions: np.ndarray) -> None:
        held.wait(PATIENCE_SECONDS)

    store = troubled(shards, {0: hang, 1: lose})
    begin = len(store.stores[0].index)
    positions = np.array([0, begin + 2, len(store.index) - 1, begin + 1])
    with pytest.raises(StoreLost, match=rf"position 2\); position 2 of this store is {begin + 2}") as caught:
        store.reader(RAW, []).fetch(Wanted(positions, store.index.ids[positions]))
    assert not held.is_set()
    held.set()
    assert (caught.value.store, caught.value.dataset, caught.value.position) == ("s", "d", begin + 2)
    with pytest.raises(StoreLost) as alone:  # no other store is asked, so no thread is
        store.read(np.array([begin]))
    assert alone.value.position == begin
    store.close()


def test_a_refusal_ends_the_epoch(shards: list[Path]) -> None:
    def refuse(positions: np.ndarray) -> None:
        raise Refused("this token has expired")

    data = Dataset(troubled(shards, {2: refuse}))
    with pytest.raises(Refused, match="expired"):
        list(load(data))
    data.close()


def test_samples_that_fail_keep_their_places(tmp_path: Path, photos: list[Photo]) -> None:
    paths = [write_folder(tmp_path / str(number), part_of(photos, number)) for number in range(3)]
    store = ShardedStore(stores_of(paths))
    gone = sorted(store.index.keys.to_pylist())[::7]
    for key in gone:
        next(path / key for path in paths if (path / key).exists()).unlink()
    positions = np.random.default_rng(1).permutation(len(store.index))
    found = store.reader(RAW, []).fetch(Wanted(positions, store.index.ids[positions]))
    keys = [store.key(position) for position in positions.tolist()]
    assert sorted(keys[place] for place in found.failed) == gone
    assert all(isinstance(error, DatasetStale) for error in found.failed.values())
    assert all((value is None) == (place in found.failed) for place, value in enumerate(found.values))
    left = by_id(load(Dataset(store), on_error="skip", batch_size=12))
    assert len(left) == len(store.index) - len(gone)
    store.close()


class Stepped:
    """A reader of one store that went through `done` steps, or says nothing of steps."""

    def __init__(self, store: LocalStore, done: int | None) -> None:
        self._store, self._done = store, done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def fetch(self, wanted: Wanted) -> Fetched:
        done = None if self._done is None else np.full(len(wanted.ids), self._done, np.uint8)
        return Fetched([(id, wanted.epoch) for id in wanted.ids.tolist()], done=done)


def test_steps_done_stay_with_their_samples(shards: list[Path]) -> None:
    store = ShardedStore(stores_of(shards))
    reader = ShardedReader(
        store, [Stepped(s, done) for s, done in zip(store.stores, (2, None, 1), strict=True)]
    )
    positions = np.random.default_rng(2).permutation(len(store.index))
    found = reader.fetch(Wanted(positions, store.index.ids[positions], epoch=4))
    assert found.values == [(id, 4) for id in store.index.ids[positions].tolist()]
    begins = np.cumsum([len(s.index) for s in store.stores])
    expected = np.array([2, 0, 1])[np.searchsorted(begins, positions, side="right")]
    assert found.done is not None
    assert found.done.tolist() == expected.tolist()
    store.close()


def test_whoever_waits_is_woken_when_the_run_is_over(shards: list[Path]) -> None:
    entered, held = threading.Event(), threading.Event()

    def hang(positions: np.ndarray) -> None:
        entered.set()
        held.wait(PATIENCE_SECONDS)

    store = troubled(shards, {1: hang})
    reader = store.reader(RAW, [])
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            reader.fetch(all_of(store))
        except Abandoned as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert entered.wait(PATIENCE_SECONDS)
    reader.abandon()
    waiting.join(PATIENCE_SECONDS / 2)
    assert len(errors) == 1
    assert not held.is_set()
    held.set()
    assert store.stores[1].abandoned
    with pytest.raises(Abandoned):
        reader.fetch(all_of(store))
    assert len(store.reader(RAW, []).fetch(all_of(store)).values) == len(store.index)
    store.close()


def test_threads_end_with_the_store(shards: list[Path]) -> None:
    def running() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("headwater-shard")}

    before = running()
    store = ShardedStore(stores_of(shards))
    assert running() <= before
    store.read(np.arange(len(store.index)))
    mine = running() - before
    assert 0 < len(mine) <= len(shards)
    del store  # not closed: it is enough that nobody holds it
    for thread in mine:
        thread.join(PATIENCE_SECONDS)
    assert not running() & mine


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_reads_with_threads_of_its_own(shards: list[Path]) -> None:
    store = ShardedStore(stores_of(shards))
    everything = np.arange(len(store.index))
    expected = list(map(bytes, store.read(everything)))
    child = os.fork()
    if not child:
        signal.alarm(int(PATIENCE_SECONDS))  # a child that waits for the parent's threads ends so
        try:
            os._exit(0 if list(map(bytes, store.read(everything))) == expected else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    store.close()


# --- behind a link


@pytest.fixture(scope="module")
def served(shards: list[Path]) -> Iterator[list[str]]:
    """Addresses of the parts. Clients see no difference between one process and three."""
    datasets = {path.name: DatasetConfig(str(path)) for path in shards}
    with Daemon(ServeConfig(listen="127.0.0.1:0", cores=1, datasets=datasets)) as daemon:
        yield [f"{daemon.serving.address}/{name}" for name in datasets]


@pytest.mark.parametrize("offload", [None, Offload(2)])
def test_shards_behind_a_link(served: list[str], photo_folder: Path, offload: Offload | None) -> None:
    data = hw.open(served)
    assert isinstance(data.store, ShardedStore)
    assert data.store.remote
    assert_same(load(hw.open(photo_folder)), load(data, offload=offload))
    again = hw.open(served[::-1])
    assert again.version == data.version
    for dataset in (data, again):
        dataset.close()


def test_a_shard_that_goes_away_is_named_with_the_position_in_the_whole(
    served: list[str], shards: list[Path]
) -> None:
    link = Link(deadline_seconds=5.0, give_up_seconds=1.0)
    host, port = served[2].removeprefix("grpc://").partition("/")[0].split(":")
    with Proxy((host, int(port))) as proxy:
        there = "{}:{}".format(*proxy.address)
        data = hw.open([*served[:2], f"grpc://{there}/part-2"], link=link)
        assert len(data.store.read(data.positions())) == len(data)
    lost = data.index.position_of(hw.open(shards[2]).ids[4:5])
    fine = data.index.position_of(hw.open(shards[0]).ids[:2])
    with pytest.raises(StoreLost) as caught:
        data.store.read(np.concatenate((fine, lost)))
    position = int(lost[0])
    assert (caught.value.store, caught.value.dataset, caught.value.position) == (there, "part-2", position)
    assert f"position 4 of this store is {position} of the dataset" in str(caught.value)
    assert len(data.store.read(fine)) == 2
    data.close()
