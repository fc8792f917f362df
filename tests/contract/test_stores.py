"""What every store promises: the same samples, batches, errors and positions as the data read in place."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import headwater as hw
from datasets import Photo, members_of, write_folder, write_parquet, write_tar
from headwater import transforms as T
from headwater.data.codecs import CODECS
from headwater.data.codecs.excerpts import excerpt_names
from headwater.errors import SampleCorrupt
from headwater.store.client.remote import RemoteStore
from headwater.store.fleet import ShardedStore
from headwater.store.local import LocalStore
from headwater.store.server.config import DatasetConfig, ServeConfig
from headwater.store.server.daemon import Daemon
from pictures import photo, progressive

LAYOUTS = ("folder", "tar", "parquet")
FIELDS: dict[str, tuple[str, ...]] = {"folder": (), "tar": ("json", "cls"), "parquet": ("number", "camera")}
KINDS = {"local": LocalStore, "remote": RemoteStore, "sharded": ShardedStore}
TRANSFORM = T.Compose([T.RandomResizedCrop(20), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)])
CUTS = len(TRANSFORM.samplewise)
OTHERS = (
    T.Compose([T.Resize(40), T.CenterCrop(32)]),
    T.Compose([T.RandomCrop(32, padding=4, pad_if_needed=True), T.RandomHorizontalFlip()]),
)
EXCERPTED = [hw.Offload(2, name) for name in excerpt_names()]
CORRUPT, MISSING, PROGRESSIVE = "0003", "0007", "0008"


def write(layout: str, root: Path, photos: list[Photo], part: int | None) -> Path:
    """The photos, or one of two parts of them, under the same keys as in the whole."""
    parts = [photos[:20], photos[20:]]
    chosen = [number for number in range(2) if part in (None, number)]
    for number in chosen:
        if layout == "folder":
            write_folder(root, parts[number])
        elif layout == "parquet":
            write_parquet(root / f"train-{number:05d}-of-00002.parquet", parts[number])
        else:
            write_tar(
                root / f"shard-{number:03d}.tar", [m for photo in parts[number] for m in members_of(photo)]
            )
    return root


def with_scans(of: Photo) -> Photo:
    assert of.suffix == "jpg"
    return of._replace(data=progressive(photo(60, 80)))


def spoil(photos: list[Photo]) -> list[Photo]:
    """One photo damaged."""
    return [photo._replace(data=photo.data[:300]) if photo.name == CORRUPT else photo for photo in photos]


class Served(NamedTuple):
    root: Path
    daemon: Daemon
    local: dict[str, hw.Dataset]
    """By name, opened before anything was taken away."""

    def uri(self, name: str) -> str:
        return f"{self.daemon.serving.address}/{name}"

    def cut(self) -> float:
        """Samples that the store has cut up to now."""
        counted = self.daemon._ledger.snapshot()["headwater_samples_total"]
        assert isinstance(counted, dict)
        return counted["cut"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, photos: list[Photo]) -> Iterator[Served]:
    """One store of every layout, whole and in parts, sound and spoilt."""
    root = tmp_path_factory.mktemp("served")
    photos = [with_scans(photo) if photo.name == PROGRESSIVE else photo for photo in photos]
    datasets = {}
    for layout in LAYOUTS:
        for state, some in (("sound", photos), ("spoilt", spoil(photos))):
            for part in (None, 0, 1):
                name = f"{layout}-{state}-{'all' if part is None else part}"
                path = write(layout, root / name, some, part)
                datasets[name] = DatasetConfig(str(path), fields=FIELDS[layout])
    # More cores than one Python process uses: what the tests themselves burn is charged to the store here.
    with Daemon(ServeConfig(listen="127.0.0.1:0", cores=3, datasets=datasets)) as daemon:
        wholes = [name for name in datasets if name.endswith("-all")]
        local = {name: hw.open(root / name, fields=datasets[name].fields) for name in wholes}
        for gone in root.glob("folder-spoilt-*/*/*.*"):
            if gone.stem == MISSING:
                gone.unlink()
        yield Served(root, daemon, local)


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Open = Callable[..., hw.Dataset]


@pytest.fixture(scope="module")
def open_as(served: Served, layout: str) -> Iterator[Open]:
    """Opens each kind of store once; `reverse` names the shards the other way round."""
    opened: dict[tuple[str, str, bool], hw.Dataset] = {}

    def open_(kind: str, state: str = "sound", *, reverse: bool = False) -> hw.Dataset:
        if kind == "local":
            return served.local[f"{layout}-{state}-all"]
        if (kind, state, reverse) not in opened:
            parts = ["all"] if kind == "remote" else ["1", "0"] if reverse else ["0", "1"]
            uris = [served.uri(f"{layout}-{state}-{part}") for part in parts]
            opened[kind, state, reverse] = hw.open(uris, progress=False)
        data = opened[kind, state, reverse]
        assert isinstance(data.store, KINDS[kind])
        return data

    yield open_
    for data in opened.values():
        data.close()


@pytest.fixture
def local(open_as: Open) -> hw.Dataset:
    return open_as("local")


@pytest.fixture
def data(open_as: Open, kind: str) -> hw.Dataset:
    return open_as(kind)


def align(data: hw.Dataset, local: hw.Dataset) -> np.ndarray:
    """Where the samples of the dataset stand in the local one: shards may come in another order."""
    assert sorted(data.ids.tolist()) == sorted(local.ids.tolist())
    return local.index.position_of(data.ids)


class TestIndex:
    def test_the_same_rows(self, data: hw.Dataset, local: hw.Dataset) -> None:
        there = align(data, local)
        assert data.labels.tolist() == local.labels[there].tolist()
        assert data.sizes.tolist() == local.sizes[there].tolist()
        assert [data.index.key(p) for p in range(len(data))] == [local.index.key(p) for p in there]
        assert (data.classes, data.index.exact_sizes) == (local.classes, local.index.exact_sizes)

    def test_the_same_columns(self, data: hw.Dataset, local: hw.Dataset, layout: str) -> None:
        there = align(data, local)
        assert set(data.columns) == set(local.columns)
        assert (layout == "parquet") == ("number" in data.columns)
        for name, column in local.columns.items():
            assert data.columns[name].tolist() == column[there].tolist()

    def test_one_store_keeps_the_order_and_the_version(self, open_as: Open, local: hw.Dataset) -> None:
        remote = open_as("remote")
        assert remote.ids.tolist() == local.ids.tolist()
        assert remote.version == local.version

    def test_shards_have_one_order_however_they_are_named(self, open_as: Open) -> None:
        one, other = open_as("sharded"), open_as("sharded", reverse=True)
        assert one.ids.tolist() == other.ids.tolist()
        assert one.version == other.version

    def test_sizes_as_far_as_they_are_exact(self, data: hw.Dataset, local: hw.Dataset) -> None:
        there = align(data, local)
        some = np.array([35, 0, 0, 7])
        assert data.store.sizes(some).tolist() == local.store.sizes(there[some]).tolist()


class TestReading:
    SOME = np.array([35, 0, 17, 3, 21])

    def test_files(self, data: hw.Dataset, local: hw.Dataset) -> None:
        there = align(data, local)
        wanted = [bytes(file) for file in local.store.read(there[self.SOME])]
        assert [bytes(file) for file in data.store.read(self.SOME)] == wanted
        everything = data.store.read(np.arange(len(data)))
        assert [bytes(f) for f in everything] == [bytes(f) for f in local.store.read(there)]

    @pytest.mark.parametrize("length", [1, 100, 1 << 30])
    def test_heads(self, data: hw.Dataset, local: hw.Dataset, length: int) -> None:
        there = align(data, local)
        wanted = [bytes(head) for head in local.store.read_heads(there[self.SOME], length)]
        assert [bytes(head) for head in data.store.read_heads(self.SOME, length)] == wanted

    def test_fields(self, data: hw.Dataset, local: hw.Dataset, layout: str) -> None:
        there = align(data, local)
        found = data.store.read_fields(self.SOME)
        wanted = local.store.read_fields(there[self.SOME])
        assert {name: list(values) for name, values in found.items()} == {
            name: list(values) for name, values in wanted.items()
        }
        assert set(found) == set(FIELDS[layout])

    def test_nothing(self, data: hw.Dataset) -> None:
        assert list(data.store.read(np.array([], np.int64))) == []

    def test_one_sample(self, data: hw.Dataset, local: hw.Dataset) -> None:
        there = align(data, local)
        found, wanted = data[5], local[int(there[5])]
        assert (found.id, found.key, found.label) == (wanted.id, wanted.key, wanted.label)
        assert (bytes(found.data), dict(found.fields)) == (bytes(wanted.data), dict(wanted.fields))
        assert np.array_equal(found.decode(), wanted.decode())

    def test_pixel_sizes(self, data: hw.Dataset, local: hw.Dataset) -> None:
        there = align(data, local)
        found = data.pixel_sizes(progress=False)
        assert found.min() >= 40
        assert found.tolist() == local.pixel_sizes(progress=False)[there].tolist()

    def test_blocks(self, data: hw.Dataset, local: hw.Dataset, layout: str, kind: str) -> None:
        found, wanted = data.store.blocks(), local.store.blocks()
        assert (found is None) == (wanted is None) == (layout != "parquet")
        if found is None or wanted is None:
            return
        assert len(found) == len(wanted)
        assert kind == "sharded" or found.tolist() == wanted.tolist()
        assert sorted(np.diff([*found, len(data)])) == sorted(np.diff([*wanted, len(local)]))


class TestParts:
    def test_the_same_ids(self, data: hw.Dataset, local: hw.Dataset) -> None:
        for one, other in (
            (data.filter(["bee"]), local.filter(["bee"])),
            (data.filter(where=lambda c: c["bytes"] > 1500), local.filter(where=lambda c: c["bytes"] > 1500)),
            *zip(data.split(0.5, 0.3, seed=4), local.split(0.5, 0.3, seed=4), strict=True),
        ):
            assert len(one) > 0
            assert sorted(one.ids.tolist()) == sorted(other.ids.tolist())

    def test_a_selection_in_its_order(self, data: hw.Dataset, local: hw.Dataset) -> None:
        some = local.ids[[30, 2, 11]]
        chosen = data.select(some)
        assert chosen.ids.tolist() == some.tolist()
        assert bytes(chosen[1].data) == bytes(local[2].data)

    def test_a_column_of_the_data(self, data: hw.Dataset, local: hw.Dataset, layout: str) -> None:
        if layout != "parquet":
            return
        south = data.filter(where=lambda columns: columns["number"] % 2 == 1)
        assert len(south) == 18
        assert {sample.fields["camera"] for sample in (south[0], south[17])} == {"south"}


def make(data: hw.Dataset, steps: Any = TRANSFORM, **options: Any) -> hw.DataLoader:
    settings = {"batch_size": 7, "shuffle": True, "seed": 3, "num_workers": 2, "timeout": 60.0}
    return hw.DataLoader(data, steps, **(settings | options))


def tell(batch: hw.Batch) -> dict[int, tuple[Any, ...]]:
    """Each sample of a batch: its bits, and all that goes with it."""
    targets = batch.targets if isinstance(batch.targets, dict) else {"label": batch.targets}
    columns = {name: list(values) for name, values in targets.items()}
    return {
        int(id): (image.numpy().tobytes(), tuple(image.shape), {n: _plain(v[p]) for n, v in columns.items()})
        for p, (id, image) in enumerate(zip(batch.ids, batch.inputs, strict=True))
    }


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def epoch_of(loader: hw.DataLoader) -> dict[int, tuple[Any, ...]]:
    found: dict[int, tuple[Any, ...]] = {}
    with closing(loader):
        for batch in loader:
            told = tell(batch)
            assert not told.keys() & found.keys()
            found |= told
    return found


class TestBatches:
    @pytest.mark.parametrize("codec", CODECS)
    @pytest.mark.parametrize("cut", range(CUTS + 1))
    def test_the_same_bits_at_every_cut(
        self, cut: int, codec: str, data: hw.Dataset, local: hw.Dataset, kind: str, served: Served
    ) -> None:
        before = served.cut()
        found = epoch_of(make(data, offload=hw.Offload(cut, codec)))
        wanted = epoch_of(make(local))
        assert len(found) == 36
        assert found == wanted
        assert (served.cut() > before) == (cut > 0 and kind != "local")

    @pytest.mark.parametrize(("steps", "cut"), [(steps, cut) for steps in OTHERS for cut in range(1, 4)])
    def test_the_same_bits_with_other_steps(
        self, steps: Any, cut: int, data: hw.Dataset, local: hw.Dataset, kind: str, served: Served
    ) -> None:
        before = served.cut()
        assert epoch_of(make(data, steps, offload=hw.Offload(cut))) == epoch_of(make(local, steps))
        assert (served.cut() > before) == (kind != "local")

    @pytest.mark.parametrize("codec", excerpt_names())
    def test_the_same_bits_from_excerpts(
        self, codec: str, data: hw.Dataset, local: hw.Dataset, kind: str, served: Served
    ) -> None:
        before = served.cut()
        assert epoch_of(make(data, offload=hw.Offload(2, codec))) == epoch_of(make(local))
        assert (served.cut() > before) == (kind != "local")

    @pytest.mark.parametrize("shuffle", [False, True, "blocks"])
    @pytest.mark.parametrize("workers", [0, 2])
    def test_one_store_gives_the_same_batches_in_the_same_order(
        self, open_as: Open, local: hw.Dataset, shuffle: bool | str, workers: int
    ) -> None:
        options = {"shuffle": shuffle, "num_workers": workers}
        for found, wanted in zip(
            make(open_as("remote"), **options, offload=hw.Offload(3)), make(local, **options), strict=True
        ):
            assert found.ids.tolist() == wanted.ids.tolist()
            assert torch.equal(found.inputs, wanted.inputs)
            assert tell(found) == tell(wanted)

    def test_bytes_that_moved_are_counted(self, data: hw.Dataset, local: hw.Dataset) -> None:
        loader, other = make(data), make(local)
        epoch_of(loader), epoch_of(other)
        assert loader.stats().bytes_moved == other.stats().bytes_moved > 0
        assert loader.stats().bytes_raw == other.stats().bytes_raw


class TestFailing:
    """One damaged file in every layout, and in folders one that is gone."""

    def fail(self, data: hw.Dataset, name: str, **options: Any) -> Exception:
        (place,) = [p for p in range(len(data)) if self.name_of(data, p) == name]
        loader = make(data.select(data.ids[[place]]), **options)
        with closing(loader), pytest.raises(hw.errors.HeadwaterError) as caught:
            list(loader)
        return caught.value

    def name_of(self, data: hw.Dataset, place: int) -> str:
        key = data.index.key(place)
        if not key.startswith("train-"):
            return key.rpartition("/")[2].partition(".")[0]
        return f"{20 * int(key[6:11]) + int(key.rpartition('/')[2]):04d}"

    @pytest.mark.parametrize("offload", [None, hw.Offload(0), hw.Offload(3), *EXCERPTED])
    def test_a_damaged_file_fails_as_it_does_here(
        self, open_as: Open, kind: str, offload: hw.Offload | None
    ) -> None:
        here = self.fail(open_as("local", "spoilt"), CORRUPT)
        found = self.fail(open_as(kind, "spoilt"), CORRUPT, offload=offload)
        assert isinstance(here, SampleCorrupt)
        assert isinstance(found, SampleCorrupt)
        assert (found.key, found.id, found.stage) == (here.key, here.id, here.stage)
        assert str(found) == str(here)

    def test_a_missing_file_fails_as_it_does_here(self, open_as: Open, kind: str, layout: str) -> None:
        if layout != "folder":
            return
        here = self.fail(open_as("local", "spoilt"), MISSING)
        for offload in (None, hw.Offload(3)):
            found = self.fail(open_as(kind, "spoilt"), MISSING, offload=offload)
            assert type(found) is type(here)
            assert MISSING in str(found) or any(MISSING in note for note in found.__notes__)
            assert getattr(found, "key", None) == getattr(here, "key", None)
            assert set(here.__notes__) <= set(found.__notes__)

    @pytest.mark.parametrize("cut", [0, 3])
    def test_skip(self, open_as: Open, kind: str, layout: str, cut: int) -> None:
        here, there = (
            make(open_as(k, "spoilt"), on_error="skip", offload=hw.Offload(cut)) for k in ("local", kind)
        )
        wanted = epoch_of(here)
        assert len(wanted) == 36 - (2 if layout == "folder" else 1)
        assert epoch_of(there) == wanted
        assert there.stats().skipped == here.stats().skipped
        assert set(there.stats().errors) == set(here.stats().errors)

    @pytest.mark.parametrize("cut", [0, 3])
    def test_substitute(self, open_as: Open, cut: int) -> None:
        options = {"on_error": "substitute", "offload": hw.Offload(cut)}
        here, there = (make(open_as(kind, "spoilt"), **options) for kind in ("local", "remote"))
        for found, wanted in zip(there, here, strict=True):
            assert found.ids.tolist() == wanted.ids.tolist()
            assert torch.equal(found.inputs, wanted.inputs)
        assert there.stats().substituted == here.stats().substituted > 0


LIMITS = {
    "pixels": hw.Limits(pixels=5000),
    "bytes": hw.Limits(bytes=2000),
    "scans": hw.Limits(scans=3),
    "seconds": hw.Limits(seconds=8e-5),
}


class TestLimits:
    """A cap of the loader's own refuses the same samples wherever the steps run, and says the same."""

    @pytest.mark.parametrize("offload", [*map(hw.Offload, range(CUTS + 1)), *EXCERPTED])
    @pytest.mark.parametrize("limit", LIMITS)
    def test_the_same_samples_are_past_them(self, open_as: Open, limit: str, offload: hw.Offload) -> None:
        options = {"limits": LIMITS[limit], "on_error": "skip", "batch_size": 36}
        here, there = (
            make(open_as("local"), **options),
            make(open_as("remote"), **options, offload=offload),
        )
        wanted = epoch_of(here)
        assert 0 < len(wanted) < 36
        assert epoch_of(there) == wanted
        assert there.stats().errors == here.stats().errors
        assert there.stats().skipped == here.stats().skipped == 36 - len(wanted)


class TestResume:
    def resume(self, first: hw.Dataset, second: hw.Dataset, steps: int) -> tuple[list[Any], list[Any]]:
        """What follows after some steps on one dataset, and what the other goes on with."""
        whole, broken, resumed = make(first), make(first), make(second, offload=hw.Offload(2))
        batches = iter(broken)
        for _ in range(steps):
            next(batches)
        resumed.load_state_dict(broken.state_dict())
        with closing(whole), closing(broken), closing(resumed):
            return [tell(batch) for batch in whole][steps:], [tell(batch) for batch in resumed]

    @pytest.mark.parametrize(
        ("first", "second"), [("remote", "local"), ("local", "remote"), ("remote", "remote")]
    )
    def test_in_mid_epoch_on_the_other_side_of_the_link(self, open_as: Open, first: str, second: str) -> None:
        rest, found = self.resume(open_as(first), open_as(second), 2)
        assert len(rest) == 4
        assert found == rest

    def test_shards_that_are_named_in_another_order(self, open_as: Open) -> None:
        rest, found = self.resume(open_as("sharded"), open_as("sharded", reverse=True), 3)
        assert len(rest) == 3
        assert found == rest


def test_a_copy_at_another_place_is_the_same_dataset(served: Served, tmp_path: Path) -> None:
    copy = hw.open(shutil.copytree(served.root / "folder-sound-all", tmp_path / "copy"))
    with closing(hw.open(served.uri("folder-sound-all"), progress=False)) as remote:
        assert copy.version == remote.version
