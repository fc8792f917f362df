"""A cache at the trainer, before a real store: the same batches, and fewer bytes from the second epoch on."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headwater as hw
from datasets import CLASSES, Photo, make_photo, write_folder, write_parquet
from headwater import transforms as T
from headwater.data.pipeline import Pipeline
from headwater.data.steps.box import CentralBox
from headwater.loader.batch import Batch
from headwater.store.fleet import ShardedStore
from pictures import turned
from stores import StoreProcess, running_daemon

pytestmark = pytest.mark.slow

COUNT, BATCH = 96, 8
FLOAT = T.ToDtype("float32", scale=True)
DRAWN = T.Compose([T.RandomResizedCrop(48), T.RandomHorizontalFlip(), FLOAT])
STEADY = T.Compose([T.Resize(60), T.CenterCrop(48), FLOAT])
MIXED = T.Compose([T.Resize(60), T.RandomCrop(48), T.RandomHorizontalFlip(), FLOAT])
MIDDLE = T.Compose([CentralBox((100, 120)), T.RandomHorizontalFlip(), FLOAT])
LARGE = 1 << 30
FITS = 8  # writes, of 24 that an epoch would make


def make_photos() -> list[Photo]:
    """Of two kinds and many sizes, some to be turned."""
    rng = np.random.default_rng(3)
    photos = []
    for number in range(COUNT):
        height, width = (int(side) for side in rng.integers(130, 260, 2))
        suffix = "png" if number % 16 == 7 else "jpg"
        data = make_photo(rng, height, width, suffix)
        if suffix == "jpg" and number % 5 == 0:
            data = turned(data, 1 + number // 5 % 8)
        photos.append(Photo(number % len(CLASSES), f"{number:04d}", suffix, data))
    return photos


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), make_photos())


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with StoreProcess({"photos": folder}, cores=2) as store:
        yield f"{store.address}/photos"


def load(data: hw.Dataset, steps: Pipeline, **options: Any) -> hw.DataLoader:
    given: dict[str, Any] = {"num_workers": 2, "timeout": 120.0, "shuffle": True, "seed": 3, **options}
    return hw.DataLoader(data, steps, batch_size=BATCH, progress=False, **given)


def same(ours: list[Batch], true: list[Batch]) -> None:
    for one, other in zip(ours, true, strict=True):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.targets, other.targets)
        assert torch.equal(one.inputs, other.inputs)


def epochs(loader: hw.DataLoader, true: hw.DataLoader, count: int) -> list[int]:
    """Bytes that each epoch moved; its batches are those of the files themselves."""
    moved = []
    for _ in range(count):
        before = loader.stats().bytes_moved
        same(list(loader), list(true))
        moved.append(loader.stats().bytes_moved - before)
    return moved


EVERY_CUT = [
    (DRAWN, "none", 0),
    (DRAWN, hw.Offload(1), 1),
    (DRAWN, hw.Offload(2), 0),
    (DRAWN, hw.Offload(2, "jpeg"), 0),
    (DRAWN, hw.Offload(3, "zstd"), 0),
    (DRAWN, "all", 0),
    (STEADY, hw.Offload(2, "zstd"), 2),
    (STEADY, hw.Offload(4), 4),
    (STEADY, hw.Offload(4, "jxl1"), 4),
    (STEADY, "all", 4),
    (MIXED, hw.Offload(2, "jxl1"), 2),
    (MIXED, "all", 0),
    (MIDDLE, hw.Offload(2, "jpeg"), 2),
    (MIDDLE, hw.Offload(2, "jpeg_progressive_arithmetic"), 2),
    (MIDDLE, hw.Offload(3), 0),
]


@pytest.mark.parametrize("tier", ["memory", "disk"])
@pytest.mark.parametrize(("steps", "offload", "held"), EVERY_CUT, ids=str)
def test_every_cut_and_codec_gives_the_same_from_the_cache(
    address: str, folder: Path, tmp_path: Path, tier: str, steps: Pipeline, offload: Any, held: int
) -> None:
    """`held` is how many steps the held form went through: those before the first that draws, or none."""
    cache = hw.Cache(LARGE) if tier == "memory" else hw.Cache(None, LARGE, tmp_path)
    loader = load(hw.open(address), steps, offload=offload, cache=cache)
    moved = epochs(loader, load(hw.open(folder), steps), 3)
    assert moved[0] > 0
    assert moved[1:] == [0, 0]
    stats = loader.stats()
    assert (stats.cache_hits, stats.cache_misses) == (2 * COUNT, COUNT)
    assert loader.cache is not None
    look = loader.cache.look(np.arange(COUNT))
    kinds = tmp_path.glob("samples-0/*-*/")
    if tier == "disk":  # a PNG, or what a store under pressure sent, is a file
        assert {path.name[:5] == "files" for path in kinds} <= ({True} if not held else {True, False})
    else:
        assert all(entry is not None for entry in look.entries)
        plain = sum(entry[:4] == bytes(4) for entry in look.entries if entry is not None)
        if held and offload == hw.Offload(1):  # whole pixels, which soon turn out larger than files
            assert COUNT / 2 < plain < COUNT
        else:
            assert plain == COUNT if not held else plain < COUNT / 2
    loader.close()


@pytest.mark.parametrize("steps", [DRAWN, STEADY, MIXED], ids=["drawn", "steady", "mixed"])
@pytest.mark.parametrize("share", [0.2, 2.0])
def test_a_plan_with_a_cache_gives_the_same(
    address: str, folder: Path, tmp_path: Path, steps: Pipeline, share: float
) -> None:
    data = hw.open(address)
    room = int(share * data.sizes.sum())
    loader = load(data, steps, offload=hw.Auto(fresh=True), cache=hw.Cache(room // 2, room // 2, tmp_path))
    moved = epochs(loader, load(hw.open(folder), steps), 4)
    assert loader.logbook is not None
    assert loader.stats().planning_failed == ""
    assert sum(entry.pushed_back for entry in loader.logbook.stretches) < COUNT / 4
    assert loader.cache is not None
    held = loader.cache.holdings()
    assert held.memory_bytes <= room // 2
    assert held.disk_bytes <= room // 2
    if share > 1:
        assert moved[1:] == [0, 0, 0]
    else:
        assert loader.stats().cache_hits > 3 * COUNT * share * 0.8
    loader.close()


def test_a_fifth_of_the_data_saves_a_fifth_of_the_bytes(address: str, folder: Path) -> None:
    data = hw.open(address)
    total = int(data.sizes.sum())
    loader = load(data, DRAWN, cache=total // 5)
    moved = epochs(loader, load(hw.open(folder), DRAWN), 3)
    assert moved[0] == total
    assert 0.75 * total < moved[1] == moved[2] < 0.85 * total


def test_what_is_valued_is_what_is_held(address: str, folder: Path) -> None:
    data = hw.open(address)
    loader = load(data, DRAWN, cache=int(data.sizes.sum()) // 4)
    true = load(hw.open(folder), DRAWN)
    importance = np.zeros(COUNT, np.float32)
    importance[:12] = 1
    assert loader.cache is not None
    loader.cache.value(importance)
    epochs(loader, true, 1)
    assert loader.cache.contains(np.arange(COUNT)).tolist() == [True] * 12 + [False] * (COUNT - 12)
    loader.cache.value(importance[::-1].copy())
    epochs(loader, true, 1)
    assert loader.cache.contains(np.arange(COUNT - 12, COUNT)).all()


def test_the_disk_survives_a_restart(address: str, folder: Path, tmp_path: Path) -> None:
    cache = hw.Cache("10kB", "1GiB", tmp_path)
    for steps, offload in ((STEADY, hw.Offload(4, "zstd")), (STEADY, None), (DRAWN, None)):
        true = load(hw.open(folder), steps)
        first = load(hw.open(address), steps, cache=cache, offload=offload)
        epochs(first, true, 1)
        first.close()
        again = load(hw.open(address), steps, cache=cache, offload=offload)
        true.set_epoch(0)
        (moved,) = epochs(again, true, 1)
        assert moved <= 15_000  # what was in memory is gone
        assert again.stats().cache_hits >= COUNT - 4
        again.close()


def test_other_data_under_the_same_address_is_read_anew(folder: Path, tmp_path: Path) -> None:
    cache = hw.Cache(None, LARGE, tmp_path / "cache")
    other = write_folder(tmp_path / "photos", make_photos()[:-1])
    for place in (folder, other):
        with running_daemon({"photos": place}) as daemon:
            loader = load(hw.open(f"{daemon.serving.address}/photos"), DRAWN, cache=cache)
            epochs(loader, load(hw.open(place), DRAWN), 1)
            assert loader.stats().cache_hits == 0
            loader.close()


def test_a_full_disk_does_not_end_the_run(
    address: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = load(hw.open(address), DRAWN, cache=hw.Cache("100kB", LARGE, tmp_path))
    true, write, written = load(hw.open(folder), DRAWN), os.pwrite, itertools.count()

    def fill(descriptor: int, data: bytes, offset: int) -> int:
        if next(written) >= FITS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", fill)
    same(list(loader), list(true))
    moved = epochs(loader, true, 2)
    assert caplog.text.count("takes no more samples") == 1
    assert 0 < moved[1] < loader.stats().bytes_raw / 3
    loader.close()


def test_further_fields_come_from_the_cache_too(tmp_path: Path) -> None:
    rows = write_parquet(tmp_path / "rows.parquet", make_photos())
    local = hw.open(rows, fields=["number", "camera"])
    loader = load(local, DRAWN, cache=hw.Cache("200kB", LARGE, tmp_path / "cache"))
    true = load(hw.open(rows, fields=["number", "camera"]), DRAWN)
    for _ in range(3):
        for ours, other in zip(loader, true, strict=True):
            assert torch.equal(ours.inputs, other.inputs)
            assert ours.targets["camera"] == other.targets["camera"]
            assert torch.equal(ours.targets["number"], other.targets["number"])
            assert ours.targets["number"].dtype == other.targets["number"].dtype
    assert loader.stats().cache_hits == 2 * COUNT
    loader.close()


def test_a_part_of_the_data_has_all_the_room(address: str, folder: Path) -> None:
    data, local = hw.open(address), hw.open(folder)
    ids = local.ids[COUNT // 2 :][::-1]
    part = data.select(ids)
    loader = load(part, DRAWN, cache=int(1.1 * part.sizes.sum()))
    moved = epochs(loader, load(local.select(ids), DRAWN), 2)
    assert moved[1] == 0


def test_ranks_with_one_folder_have_a_place_each(address: str, folder: Path, tmp_path: Path) -> None:
    cache = hw.Cache(None, LARGE, tmp_path)
    ranks = [load(hw.open(address), DRAWN, cache=cache, rank=rank, world_size=2) for rank in range(2)]
    true = [load(hw.open(folder), DRAWN, rank=rank, world_size=2) for rank in range(2)]
    for _ in range(3):
        for ours, theirs in zip(ranks, true, strict=True):
            same(list(ours), list(theirs))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["samples-0", "samples-1"]
    for loader in ranks:
        assert loader.stats().cache_hits > 0
        loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_with_few_threads_and_left_early(address: str, folder: Path, workers: int) -> None:
    loader = load(hw.open(address), DRAWN, cache="1GiB", num_workers=workers)
    true = load(hw.open(folder), DRAWN)
    next(iter(loader))
    next(iter(true))
    moved = epochs(loader, true, 2)
    assert moved[1] == 0


def test_without_a_cache_nothing_is_counted(address: str) -> None:
    loader = load(hw.open(address), DRAWN)
    list(loader)
    assert loader.cache is None
    assert (loader.stats().cache_hits, loader.stats().cache_misses) == (0, 0)


@pytest.mark.parametrize(("steps", "offload"), [(STEADY, hw.Offload(4, "zstd")), (DRAWN, "all")], ids=str)
def test_several_stores_with_a_part_each(tmp_path: Path, steps: Pipeline, offload: Any) -> None:
    photos = make_photos()
    parts = [write_folder(tmp_path / f"part-{part}", photos[part::2]) for part in range(2)]
    with running_daemon({"photos": parts[0]}) as a, running_daemon({"photos": parts[1]}) as b:
        data = hw.open([f"{daemon.serving.address}/photos" for daemon in (a, b)])
        whole = hw.Dataset(ShardedStore([hw.open(part).store for part in parts]))
        loader = load(data, steps, offload=offload, cache=LARGE)
        assert epochs(loader, load(whole, steps), 3)[1:] == [0, 0]
        loader.close()
