"""Samples forgotten at two real stores: no trace in their files, also when somebody is killed meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from headwater.errors import DatasetStale, ModelRefused, Refused, Unreachable, WrongUse
from headwater.models.registry import Registry
from headwater.store.client.models import models_of
from headwater.store.pushing import push
from headwater.tune.again import HeadAgain
from headwater.tune.forget.places import AtStore
from headwater.tune.forget.survey import Scene, Wish, look_around
from headwater.tune.forget.traces import Marks, Trace, find_traces
from headwater.tune.forget.work import Forgot, forget
from headwater.tune.recipe import Recipe
from headwater.tune.relabel import Access, relabel_at
from headwater.tune.relabel import Wish as LabelWish
from headwater.tune.tuner import Tuner
from stores import StoreProcess
from tunings import make_registry, write_colours

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAME = "tuned"
RECIPE = Recipe(epochs=3, runs=2, batch_size=32, cut="features", more_bytes=True)
TOKEN = {"HEADWATER_TOKEN": "t" * 24}


@dataclass
class Yard:
    """Two replicas with a state each, a tuner's registry, and a head that has labelled everything at both."""

    folder: Path
    stores: list[StoreProcess]

    @property
    def uris(self) -> list[str]:
        return [f"{store.address}/colours" for store in self.stores]

    @property
    def registry(self) -> Registry:
        return Registry(self.folder / "tuner" / "models")

    @property
    def scene(self) -> Scene:
        places = tuple(AtStore(uri, self.registry, Access()) for uri in self.uris)
        return Scene(places, self.registry, lambda: hw.open(self.uris, progress=False))

    @property
    def kept(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if not path.name.startswith("data")]

    def ids(self, *places: int) -> tuple[int, ...]:
        with closing(hw.open(self.uris, progress=False)) as data:
            again = HeadAgain(data, NAME, registry=self.registry)
            return tuple(again.ids[list(places)].tolist())

    def marks(self, id: int) -> Marks:
        with closing(hw.open(self.uris, progress=False)) as data:
            sample = data.select([id])[0]
            return Marks.of(id, sample.key, bytes(sample.data))

    def traces(self, marks: Marks) -> list[Trace]:
        return find_traces(self.kept, marks)

    def forget(self, wish: Wish) -> Forgot:
        return forget(self.scene, look_around(self.scene, wish))


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "tuner" / "cache"))
    monkeypatch.setenv("HEADWATER_FORGOTTEN", str(tmp_path / "tuner" / "forgotten"))
    for name, value in TOKEN.items():
        monkeypatch.setenv(name, value)
    write_colours(tmp_path / "data-0" / "colours", count=20)
    shutil.copytree(tmp_path / "data-0", tmp_path / "data-1")
    registry = make_registry(tmp_path / "tuner" / "models")
    with ExitStack() as stack:
        stores = [
            stack.enter_context(
                StoreProcess(
                    {"colours": tmp_path / f"data-{number}" / "colours"},
                    environment={**TOKEN, "HEADWATER_CACHE": str(tmp_path / f"store-{number}" / "cache")},
                    state=tmp_path / f"store-{number}" / "state",
                    may_delete=number == 1,
                )
            )
            for number in range(2)
        ]
        yard = Yard(tmp_path, stores)
        push(registry, [store.address for store in stores], "plain")
        with closing(hw.open(yard.uris, progress=False)) as data:
            Tuner(data, "plain", registry=registry, recipe=RECIPE).fit(NAME, journal=True)
        push(registry, [store.address for store in stores], NAME)
        relabel_at(yard.uris, LabelWish(model=NAME))
        yield yard


def in_force(yard: Yard) -> list[str]:
    found = []
    for store in yard.stores:
        with models_of(store.address) as models:
            found.append(models.inventory().current[NAME][0])
    return found


def test_everything_knows_of_it_before_and_nothing_after(yard: Yard) -> None:
    ids = yard.ids(3, 40)
    marks = [yard.marks(id) for id in ids]
    before = {trace.path.relative_to(yard.folder).parts[:2] for mark in marks for trace in yard.traces(mark)}
    assert before == {
        *(("store-0", part) for part in ("state", "cache")),
        *(("store-1", part) for part in ("state", "cache")),
        *(("tuner", part) for part in ("models", "cache")),
    }
    reader = hw.open(yard.uris, progress=False)
    old = yard.registry.current(NAME).digest
    done = yard.forget(Wish(ids=ids))
    assert not [trace for mark in marks for trace in yard.traces(mark)]
    with closing(hw.open(yard.uris, progress=False)) as data:
        assert len(data) == 58
        assert not data.index.has(np.array(ids)).any()
    new = yard.registry.current(NAME).digest
    assert in_force(yard) == [new, new]
    assert new != old
    for there in done.found.values():
        assert (there.found["index"], there.samples) == (2, 58)
        assert there.found["features"] == 2, "those of the fine-tuning are those of the relabel"
        assert there.found["labels"] >= 2
    assert len(done.relabelled) == 2
    assert {way["kind"] for way in done.brought.values()} == {"delta"}
    with closing(reader), pytest.raises(DatasetStale, match="open it again"):
        reader.store.read(np.array([0]))
    with models_of(yard.stores[0].address) as models, pytest.raises(ModelRefused, match="is sealed"):
        models.rollback(NAME)
    for store in yard.stores:
        store.restart()
    with closing(hw.open(yard.uris, progress=False)) as data:
        assert len(data) == 58, "a store remembers"
    assert not [trace for mark in marks for trace in yard.traces(mark)]


def test_a_store_that_is_away_is_told_of_and_the_same_command_does_the_rest(yard: Yard) -> None:
    ids = yard.ids(3)
    marks = yard.marks(ids[0])
    survey = look_around(yard.scene, Wish(ids=ids))
    yard.stores[1].kill()
    with pytest.raises(Unreachable):
        forget(yard.scene, survey)
    yard.stores[1].restart()
    assert yard.forget(Wish(ids=ids)).resumed
    assert not yard.traces(marks)
    assert len(set(in_force(yard))) == 1


def test_models_that_were_left_forget_when_they_are_asked_again(yard: Yard) -> None:
    ids = yard.ids(3, 40)
    marks = [yard.marks(id) for id in ids]
    old = yard.registry.current(NAME).digest
    left = yard.forget(Wish(ids=ids, models=False))
    assert set(left.task.left) == {NAME}
    assert in_force(yard) == [old, old]
    done = yard.forget(Wish(ids=ids))
    new = yard.registry.current(NAME).digest
    assert done.task.facts[NAME]["method"] == "exact"
    assert in_force(yard) == [new, new]
    assert new != old
    assert len(done.relabelled) == 2
    assert not [trace for mark in marks for trace in yard.traces(mark)]
    with models_of(yard.stores[0].address) as models, pytest.raises(ModelRefused, match="is sealed"):
        models.switch(NAME, old)


def test_another_machine_that_knew_the_sample_forgets_what_it_keeps(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a cache, lists and a registry of its own, and hears nothing of what the first one did."""
    (id,), first, there = yard.ids(3), yard.folder / "tuner", yard.folder / "other"
    marks = yard.marks(id)

    def be(machine: Path) -> Yard:
        monkeypatch.setenv("HEADWATER_CACHE", str(machine / "cache"))
        monkeypatch.setenv("HEADWATER_FORGOTTEN", str(machine / "forgotten"))
        return yard

    shutil.copytree(first / "models", there / "models")
    registry = Registry(there / "models")
    be(there).marks(id)
    places = tuple(AtStore(uri, registry, Access()) for uri in yard.uris)
    scene = Scene(places, registry, lambda: hw.open(yard.uris, progress=False), there / "forgotten")
    with pytest.raises(WrongUse, match="no sample with id 7"):
        look_around(scene, Wish(ids=(7,)))
    be(first).forget(Wish(ids=(id,)))
    be(there).marks(yard.ids(5)[0])
    assert {trace.path.relative_to(there).parts[0] for trace in find_traces([there], marks)} == {
        "cache",
        "models",
    }
    done = forget(scene, look_around(scene, Wish(ids=(id,))))
    assert done.cached["cached indexes"] > 0
    assert len(done.task.sealed) == 1
    assert not find_traces([there], marks)
    with pytest.raises(WrongUse, match="no sample with id 7"):
        look_around(scene, Wish(ids=(7,)))


def test_files_are_deleted_only_where_that_is_allowed(yard: Yard) -> None:
    with pytest.raises(Refused, match="this store may not delete files; start it with --may-delete"):
        look_around(yard.scene, Wish(paths=("red/0007.png",), delete_files=True))
    assert (yard.folder / "data-1" / "colours" / "red" / "0007.png").exists()


def test_stores_that_are_killed_again_and_again_end_in_the_same_state(yard: Yard) -> None:
    """The command runs in a process of its own, stores are killed at any moment, and it is said again."""
    ids = yard.ids(3, 40)
    marks = [yard.marks(id) for id in ids]
    words = ["forget", *yard.uris, *map(str, ids), "--yes", "--json", "--registry", str(yard.registry.folder)]
    command = [sys.executable, "-m", "headwater.cli", *words]
    rng = np.random.default_rng(int(os.environ.get("HEADWATER_SEED", "5")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    plans = Path(os.environ["HEADWATER_FORGOTTEN"]) / "plans"
    for turn in range(4):
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if turn:
            time.sleep(float(rng.uniform(2, 7)))
        else:
            while not (plans.is_dir() and any(plans.iterdir())):
                assert child.poll() is None, "it ended without a plan"
                time.sleep(0.01)
            assert child.poll() is None, "else nothing was interrupted"
        victim = rng.choice(["store-0", "store-1", "command"])
        if victim == "command":
            child.kill()
        else:
            yard.stores[int(victim[-1])].kill()
            child.kill()
            yard.stores[int(victim[-1])].restart()
        child.communicate()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr + done.stdout
    said: dict[str, Any] = json.loads(done.stdout)
    assert {place["samples"] for place in said["places"].values()} == {58}
    assert not [trace for mark in marks for trace in yard.traces(mark)]
    assert in_force(yard) == [yard.registry.current(NAME).digest] * 2
    lines = (yard.folder / "store-0" / "state" / "forgotten" / "audit.jsonl").read_text().splitlines()
    assert len(lines) == 1
