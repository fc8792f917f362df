"""Offloading that is planned while a run goes on: the same batches, fewer bytes, and words that say why."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
import psutil
import pytest
import torch

import headwater as hw
from datasets import CLASSES, Photo, make_photo, write_folder, write_parquet
from headwater import cli
from headwater import transforms as T
from headwater.cli.cpu import tree_cpu_seconds
from headwater.cli.proxy import Shape
from headwater.errors import StateMismatch, WrongUse
from headwater.loader.batch import Batch
from headwater.measure.epochplan import EpochPlan
from headwater.measure.logbook import Logbook, logbook_path
from headwater.plan.offload import POLICIES, policies
from headwater.store.fleet import ShardedStore
from pictures import turned
from rigs import Kind, Rig, running_rig
from stores import Certificates, StoreProcess, make_certificates, running_daemon

pytestmark = pytest.mark.slow

COUNT, BATCH = 400, 16
STEPS = T.Compose([T.RandomResizedCrop(48), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)])
RATE = 32e6
SLOW, SLOWER, QUICK = Shape(RATE), Shape(RATE / 4), Shape()


def write_parts(root: Path, parts: int) -> list[Path]:
    """Photos of which every fifth has to be turned, in each of the ways that EXIF knows."""
    rng = np.random.default_rng(8)
    photos = []
    for number in range(COUNT):
        height, width = (int(side) for side in rng.integers(180, 420, 2))
        suffix = "png" if number % 40 == 7 else "jpg"
        data = make_photo(rng, height, width, suffix)
        if suffix == "jpg" and number % 5 == 0:
            data = turned(data, 1 + number // 5 % 8)
        photos.append(Photo(number % len(CLASSES), f"{number:04d}", suffix, data))
    return [write_folder(root / f"part-{part}", photos[part::parts]) for part in range(parts)]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parts(tmp_path_factory.mktemp("whole"), 1)[0]


@pytest.fixture(scope="module")
def slow(folder: Path, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Rig]:
    """A store with cores to spare, behind a link that is the slowest of all."""
    work = tmp_path_factory.mktemp("slow")
    parts = [{"photos": folder}]
    with running_rig(parts, work, kind=Kind(), certificates=certificates, shape=SLOW) as rig:
        yield rig


def load(data: hw.Dataset, offload: Any, **options: Any) -> hw.DataLoader:
    given: dict[str, Any] = {"num_workers": 2, "timeout": 120.0, **options}
    return hw.DataLoader(
        data, STEPS, batch_size=BATCH, shuffle=True, seed=3, progress=False, offload=offload, **given
    )


class Truth:
    """Epochs of the files themselves."""

    def __init__(self, *folders: Path) -> None:
        opened = [hw.open(folder) for folder in folders]
        whole = hw.Dataset(ShardedStore([data.store for data in opened])) if len(opened) > 1 else opened[0]
        self._loader = load(whole, None)
        self._epochs: dict[int, list[Batch]] = {}

    def check(self, batches: list[Batch], epoch: int) -> None:
        if epoch not in self._epochs:
            self._loader.set_epoch(epoch)
            self._epochs[epoch] = list(self._loader)
        for ours, true in zip(batches, self._epochs[epoch], strict=True):
            assert torch.equal(ours.ids, true.ids)
            assert torch.equal(ours.inputs, true.inputs)


@pytest.fixture(scope="module")
def truth(folder: Path) -> Truth:
    return Truth(folder)


@pytest.mark.parametrize(
    "offload",
    [
        "none",
        "all",
        "throughput",
        "efficiency",
        hw.Offload(3),
        hw.Offload(2, "jpeg"),
        hw.Auto(fresh=True),
        hw.Auto(store_seconds=0.0005, fresh=True),
    ],
    ids=str,
)
def test_every_policy_gives_the_same_batches(slow: Rig, truth: Truth, offload: Any) -> None:
    loader = load(slow.open(), offload)
    for epoch in range(3):
        truth.check(list(loader), epoch)


def test_a_slow_link_is_relieved_and_the_logbook_tells(slow: Rig, truth: Truth) -> None:
    loader = load(slow.open(), hw.Auto(fresh=True))
    moved = []
    for epoch in range(4):
        before = loader.stats()
        truth.check(list(loader), epoch)
        after = loader.stats()
        moved.append((after.bytes_raw - before.bytes_raw) / (after.bytes_moved - before.bytes_moved))
    assert moved[-1] > 1.5  # the plan follows the CPU time that it sees, so a busy machine moves more
    book = loader.logbook
    assert book is not None
    planned = [entry for entry in book.stretches if entry.phase == "plan"]
    assert book.stretches[0].phase == "explore"
    assert sum(planned[-1].ways[1:]) > 0.5 * sum(planned[-1].ways)
    assert "offloaded" in planned[-1].reason
    expected = sum(total.predicted_bytes for total in book.totals[1:])
    assert sum(total.foreseen_bytes for total in book.totals[1:]) == pytest.approx(expected, rel=0.1)
    assert Logbook.load(logbook_path(book.key)).key == book.key


def test_the_plan_in_force_is_kept_and_explained(
    slow: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path))
    data = slow.open()
    loader = load(data, "auto")
    for _ in range(3):
        list(loader)
    assert loader.logbook is not None
    plan = EpochPlan.find(loader.logbook.key, seed=3)
    assert plan is not None
    assert plan.epoch == 2
    assert sum(plan.counts()[1:]) > COUNT / 4
    place = next(place for place in range(COUNT) if plan.way_of(place))
    assert cli.run(["explain", "--sample", str(data.index.ids[place]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["planned"] == sum(plan.counts())
    assert found["sample"]["planned"]
    assert found["sample"]["chosen"] in found["plan"]["ways"]


def test_the_next_run_begins_with_a_plan(slow: Rig, truth: Truth) -> None:
    first = load(slow.open(), "auto")
    for _ in range(2):
        list(first)
    second = load(slow.open(), "auto")
    truth.check(list(second), 0)
    assert second.logbook is not None
    assert [entry.phase for entry in second.logbook.stretches[:2]] == ["guard", "plan"]
    assert second.stats().bytes_moved < second.stats().bytes_raw / 1.5


def test_a_slow_trainer_needs_nothing(
    folder: Path, tmp_path: Path, certificates: Certificates, truth: Truth
) -> None:
    parts = [{"photos": folder}]
    with running_rig(parts, tmp_path, kind=Kind(), certificates=certificates, shape=QUICK) as rig:
        loader = load(rig.open(), hw.Auto(fresh=True))
        for epoch in range(3):
            batches = []
            for batch in loader:
                time.sleep(0.04)
                batches.append(batch)
            truth.check(batches, epoch)
    assert loader.logbook is not None
    last = loader.logbook.stretches[-1]
    assert sum(last.ways[1:]) == 0
    assert "trainer" in last.reason


def test_several_stores_get_a_plan_each(tmp_path: Path, certificates: Certificates) -> None:
    folders = write_parts(tmp_path / "data", 2)
    parts = [{"photos": folder} for folder in folders]
    kind = Kind(shards=2)
    with running_rig(parts, tmp_path / "work", kind=kind, certificates=certificates, shape=SLOW) as rig:
        loader = load(rig.open(), hw.Auto(fresh=True))
        true = Truth(*folders)
        for epoch in range(3):
            true.check(list(loader), epoch)
    assert loader.logbook is not None
    planned = {entry.site for entry in loader.logbook.stretches if entry.phase == "plan"}
    assert len(planned) == 2


def test_a_store_that_dies_under_a_plan_costs_time_only(
    folder: Path, tmp_path: Path, certificates: Certificates, truth: Truth
) -> None:
    parts = [{"photos": folder}]
    with running_rig(parts, tmp_path, kind=Kind(), certificates=certificates, shape=SLOW) as rig:
        loader = load(rig.open(), hw.Auto(fresh=True))
        for epoch in range(2):
            truth.check(list(loader), epoch)

        def strike() -> None:
            rig.stores[0].kill()
            rig.stores[0].restart()

        striker = threading.Thread(target=strike)
        batches = []
        for batch in loader:
            batches.append(batch)
            if len(batches) == 5:
                striker.start()
        striker.join()
        truth.check(batches, 2)
        rig.stores[0].suspend()
        threading.Timer(1.5, rig.stores[0].resume).start()
        truth.check(list(loader), 3)


def follow_a_plan(loader: hw.DataLoader, truth: Truth) -> None:
    """Two epochs, after which samples are offloaded as planned."""
    for epoch in range(2):
        truth.check(list(loader), epoch)
    assert loader.logbook is not None
    planned = [entry for entry in loader.logbook.stretches if entry.phase == "plan" and entry.epoch == 1]
    assert sum(sum(entry.ways[1:]) for entry in planned) > 0


def test_a_link_that_slows_down_under_a_plan_costs_time_only(
    folder: Path, tmp_path: Path, certificates: Certificates, truth: Truth
) -> None:
    parts = [{"photos": folder}]
    with running_rig(parts, tmp_path, kind=Kind(), certificates=certificates, shape=SLOW) as rig:
        loader = load(rig.open(), hw.Auto(fresh=True))
        follow_a_plan(loader, truth)
        batches = []
        for batch in loader:
            batches.append(batch)
            if len(batches) == 5:
                rig.proxies[0].reshape(SLOWER)
        truth.check(batches, 2)


@contextmanager
def starving(store: StoreProcess) -> Iterator[None]:
    """Let all processes of a store run for a tenth of the time."""
    root = psutil.Process(store.pid)
    family, over = [root, *root.children(recursive=True)], threading.Event()

    def starve() -> None:
        while not over.is_set():
            for process in family:
                process.suspend()
            over.wait(0.09)
            for process in family:
                process.resume()
            over.wait(0.01)

    thread = threading.Thread(target=starve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_store_that_is_starved_under_a_plan_costs_time_only(
    folder: Path, tmp_path: Path, certificates: Certificates, truth: Truth
) -> None:
    parts = [{"photos": folder}]
    with running_rig(parts, tmp_path, kind=Kind(), certificates=certificates, shape=SLOW) as rig:
        loader = load(rig.open(), hw.Auto(fresh=True))
        follow_a_plan(loader, truth)
        source = iter(loader)
        batches = [next(source) for _ in range(5)]
        with starving(rig.stores[0]):
            began, spent = time.monotonic(), tree_cpu_seconds(rig.stores[0].pid)
            batches += islice(source, 8)
            used = (tree_cpu_seconds(rig.stores[0].pid) - spent) / (time.monotonic() - began)
        assert used < 0.4
        truth.check([*batches, *source], 2)


class Failing:
    """A policy with a defect."""

    def choose(self, work: object) -> NoReturn:
        raise ZeroDivisionError("a policy of no use")


def test_a_planner_that_fails_costs_the_offloading_only(
    slow: Rig,
    truth: Truth,
    monkeypatch: pytest.MonkeyPatch,
    planner_failures: list[logging.LogRecord],
    capsys: pytest.CaptureFixture[str],
) -> None:
    loader = load(slow.open(), hw.Auto(fresh=True))
    follow_a_plan(loader, truth)
    assert loader.stats().planning_failed == ""
    monkeypatch.setattr(policies, "POLICIES", {**POLICIES, "hull": Failing})
    truth.check(list(loader), 2)
    before = loader.stats()
    truth.check(list(loader), 3)
    after = loader.stats()
    assert after.bytes_moved - before.bytes_moved == after.bytes_raw - before.bytes_raw  # files
    assert after.planning_failed == "ZeroDivisionError: a policy of no use"
    (record,) = planner_failures
    assert record.exc_info is not None
    planner_failures.clear()
    assert loader.logbook is not None
    assert cli.run(["explain", loader.logbook.uri]) == 0
    assert "Planning failed (ZeroDivisionError: a policy of no use)" in capsys.readouterr().out


def test_a_starved_store_sends_files(folder: Path, truth: Truth) -> None:
    with StoreProcess({"photos": folder}, cores=0.1) as store:
        loader = load(hw.open(f"{store.address}/photos"), hw.Auto(fresh=True))
        for epoch in range(2):
            truth.check(list(loader), epoch)
    assert loader.logbook is not None
    assert loader.stats().samples == 2 * COUNT


def test_a_logbook_for_something_else_is_refused(slow: Rig, tmp_path: Path) -> None:
    loader = load(slow.open(), "auto")
    list(loader)
    assert loader.logbook is not None
    path = tmp_path / "run.json"
    loader.logbook.save(path)
    assert next(iter(load(slow.open(), path))).ids.shape == (BATCH,)
    other = hw.DataLoader(slow.open(), T.Compose([T.RandomResizedCrop(40)]), batch_size=4, offload=path)
    with pytest.raises(StateMismatch, match=r"other steps.*headwater profile"):
        next(iter(other))


def test_a_logbook_for_other_data_or_libraries_is_refused(
    slow: Rig, photo_folder: Path, tmp_path: Path
) -> None:
    loader = load(slow.open(), "auto")
    list(loader)
    book, path = loader.logbook, tmp_path / "run.json"
    assert book is not None
    book.save(path)
    with running_daemon({"photos": photo_folder}) as daemon:
        other = load(hw.open(f"{daemon.serving.address}/photos"), path)
        with pytest.raises(StateMismatch, match=r"for dataset version .*, this is .*headwater profile"):
            next(iter(other))
    book.key = msgspec.structs.replace(book.key, libraries={**book.key.libraries, "imagecodecs": "0"})
    book.save(path)
    with pytest.raises(
        StateMismatch, match=r"made with imagecodecs 0, here is imagecodecs .*headwater profile"
    ):
        next(iter(load(slow.open(), path)))


@pytest.mark.parametrize("offload", ["hul", "absent.json"])
def test_what_is_no_policy_is_refused_by_name(slow: Rig, offload: str) -> None:
    with pytest.raises(WrongUse, match="offload is"):
        load(slow.open(), offload)


def test_without_threads_and_left_early(slow: Rig, truth: Truth) -> None:
    loader = load(slow.open(), hw.Auto(fresh=True), num_workers=0)
    next(iter(loader))
    for epoch in range(1, 4):
        truth.check(list(loader), epoch)
    assert loader.logbook is not None
    assert sum(loader.logbook.stretches[-1].ways[1:]) > 0


def test_rows_of_unknown_size_and_a_part_of_them(
    tmp_path: Path, certificates: Certificates, folder: Path
) -> None:
    photos = [
        Photo(n % 3, f"{n:04d}", path.suffix[1:], path.read_bytes())
        for n, path in enumerate(sorted(folder.rglob("*.*")))
    ]
    rows = write_parquet(tmp_path / "rows.parquet", photos)
    with running_rig(
        [{"rows": rows}], tmp_path / "work", kind=Kind(), certificates=certificates, shape=SLOW
    ) as rig:
        data, local = rig.open("rows"), hw.open(rows)
        ids = local.ids[::2]
        loader, true = load(data.select(ids), hw.Auto(fresh=True)), load(local.select(ids), None)
        for _ in range(4):
            for ours, theirs in zip(loader, true, strict=True):
                assert torch.equal(ours.ids, theirs.ids)
                assert torch.equal(ours.inputs, theirs.inputs)
        book = loader.logbook
        assert book is not None
        assert sum(book.stretches[-1].ways[1:]) > 0
        assert sum(total.estimated for total in book.totals[1:]) > 0
        lengths = 4 * sum(len(photo.data) for photo in photos[::2])
        assert sum(total.file_bytes for total in book.totals) == pytest.approx(lengths, rel=0.15)
        used = [total for total in book.totals[1:] if total.estimated > BATCH]
        assert min(total.bytes / total.file_bytes for total in used) < 0.7


def test_local_data_has_nothing_to_offload(folder: Path, truth: Truth) -> None:
    loader = load(hw.open(folder), "auto")
    truth.check(list(loader), 0)
    assert loader.logbook is None
