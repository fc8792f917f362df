"""Fine-tuning over real stores: features cross, images do not, and the result is that of a laptop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from exports import as_they_are, exported_inside, fitted
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.errors import ModelNotFound, Unreachable, WrongUse
from headwater.models.registry import Registry
from headwater.plan.finetune import FinetunePlan
from headwater.plan.finetune.choice import DOUBT, TIE
from headwater.store.client.link import Link
from headwater.store.client.models import models_of
from headwater.store.labels import LabelRows, Source, open_labels
from headwater.store.pushing import push
from headwater.tune.labels import labels_from
from headwater.tune.quantise import QuantiseWish, quantise_here
from headwater.tune.recipe import Recipe
from headwater.tune.relabel import relabel_at
from headwater.tune.sources import AtStores
from headwater.tune.tuner import Tuner
from nets import SIZE
from stores import StoreProcess, running_daemon
from tunings import StopAt, make_registry, write_colours

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RECIPE = Recipe(epochs=3, runs=2, batch_size=32, cut="features")
LAPTOP = Recipe(epochs=3, runs=2, batch_size=32)
PATIENT = Link(give_up_seconds=120.0)


@pytest.fixture(autouse=True)
def cache(tuning_cache: Path) -> Path:
    return tuning_cache


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_colours(tmp_path_factory.mktemp("colours"))


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return make_registry(tmp_path / "models")


@pytest.fixture(scope="module")
def expected(colours: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The head that a laptop with the pictures themselves comes to."""
    registry = make_registry(tmp_path_factory.mktemp("laptop"))
    done = Tuner(hw.open(colours), "plain", registry=registry, recipe=LAPTOP).fit("laptop")
    return done.version.tensors["head/weight"].digest


def test_features_cross_and_the_head_is_the_laptops(
    colours: Path, registry: Registry, expected: str, tmp_path: Path
) -> None:
    with running_daemon({"colours": colours}, state=tmp_path / "state") as daemon:
        address = daemon.serving.address
        push(registry, [address], "plain")
        data = hw.open(f"{address}/colours")
        done = Tuner(data, "plain", registry=registry, recipe=RECIPE).fit("tuned")
        data.close()
    assert done.version.tensors["head/weight"].digest == expected
    assert done.plan.cut.name == "features"
    assert done.measured.bytes == 180 * 24 * 2
    assert done.measured.bytes < int(data.sizes.sum()) / 40


def test_images_may_cross_too_and_the_head_is_the_same(
    colours: Path, registry: Registry, expected: str, tmp_path: Path
) -> None:
    recipe = Recipe(epochs=3, runs=2, batch_size=32, cut="images")
    with running_daemon({"colours": colours}) as daemon:
        data = hw.open(f"{daemon.serving.address}/colours")
        done = Tuner(data, "plain", registry=registry, recipe=recipe).fit("tuned")
        data.close()
    assert done.version.tensors["head/weight"].digest == expected
    assert done.measured.bytes == int(data.sizes.sum())


def test_the_plan_weighs_both(colours: Path, registry: Registry, tmp_path: Path) -> None:
    with running_daemon({"colours": colours}, state=tmp_path / "state") as daemon:
        address = daemon.serving.address
        push(registry, [address], "plain")
        data = hw.open(f"{address}/colours")
        plan = Tuner(data, "plain", registry=registry, recipe=Recipe(epochs=3)).plan()
        data.close()
    images, *inside, features = plan.options
    assert (images.cut.name, features.cut.name) == ("images", "features")
    assert images.bytes == pytest.approx(int(data.sizes.sum()))
    assert features.bytes == 180 * 48
    assert min(images.seconds, features.seconds) > 0
    assert (images.ships_more, features.ships_more) == (False, False)
    chosen = next(option for option in plan.options if option.cut == plan.cut)
    assert chosen.seconds <= DOUBT * (1 + TIE) * min(option.seconds for option in plan.options)
    assert f"of {2 + len(inside)} cuts" in plan.reason


@pytest.mark.parametrize(
    ("state", "says"), [(False, "this store keeps no models"), (True, "this store holds no model")]
)
def test_images_cross_where_stores_cannot_run_the_layers(
    state: bool, says: str, colours: Path, registry: Registry, expected: str, tmp_path: Path
) -> None:
    settings = {"state": tmp_path / "state"} if state else {}
    with running_daemon({"colours": colours}, **settings) as daemon:
        data = hw.open(f"{daemon.serving.address}/colours")
        tuner = Tuner(data, "plain", registry=registry, recipe=LAPTOP)
        assert f"no features from the stores: {says}" in tuner.plan().reason
        done = tuner.fit("tuned")
        data.close()
    assert done.plan.cut.name == "images"
    assert done.version.tensors["head/weight"].digest == expected


def test_a_store_that_lacks_the_layers_says_so(colours: Path, registry: Registry, tmp_path: Path) -> None:
    with running_daemon({"colours": colours}, state=tmp_path / "state") as daemon:
        data = hw.open(f"{daemon.serving.address}/colours")
        with pytest.raises(ModelNotFound):
            Tuner(data, "plain", registry=registry, recipe=RECIPE).fit("tuned")
        data.close()


def test_features_larger_than_the_images_are_refused_unless_allowed(
    registry: Registry, tmp_path: Path
) -> None:
    """2,048 features of a cut inside the model, and pictures of less than a kilobyte."""
    folder = write_colours(tmp_path / "small", 20, size=16)
    registry.put(exported_inside().model, name="inside", switch=True)
    with running_daemon({"colours": folder}, state=tmp_path / "state") as daemon:
        address = daemon.serving.address
        push(registry, [address], "inside")
        data = hw.open(f"{address}/colours")

        def plan(**wishes: Any) -> FinetunePlan:
            return Tuner(data, "inside", registry=registry, recipe=Recipe(epochs=2, **wishes)).plan()

        with pytest.raises(WrongUse, match=r"'features', 2,\d{3} bytes would cross for an image of"):
            plan(cut="features")
        assert plan(cut="features", more_bytes=True).cut.name == "features"
        free = plan()
        data.close()
    assert free.cut.name == "images"
    assert "features left out: more bytes than an image" in free.reason


def test_int8_layers_are_judged_by_features_where_stores_have_fp32_and_by_images_elsewhere(
    registry: Registry, tmp_path: Path
) -> None:
    folder = write_colours(tmp_path / "pictures", 60, size=SIZE)
    fp32 = registry.put(as_they_are(fitted()), name="plain", switch=True).digest
    quantise_here(hw.open(folder), registry, QuantiseWish("plain"))
    int8 = registry.current("plain").digest
    taken = {}
    with running_daemon({"colours": folder}, state=tmp_path / "state") as daemon:
        address = daemon.serving.address
        for name, brought in (("without", [int8]), ("with", [fp32, int8])):
            for digest in brought:
                push(registry, [address], digest, name="plain")
            with closing(hw.open(f"{address}/colours")) as data:
                done = Tuner(data, int8, registry=registry, recipe=RECIPE).fit(name)
            assert done.version.made["int8"]["images"] == 99
            assert (done.version.made["int8"]["accepted"], done.version.parent) == (True, int8)
            taken[name] = done.measured.bytes
    assert taken["with"] == (180 + 99) * 48
    assert taken["without"] > 180 * 48 + 0.8 * 99 / 180 * int(hw.open(folder).sizes.sum())


def test_shards_and_augmentation(registry: Registry, tmp_path: Path) -> None:
    """Two stores with other pictures each; both make variants of their own."""
    from headwater import transforms as T

    parts = {}
    for number, name in enumerate(("north", "south")):
        folder = write_colours(tmp_path / name, 30)
        for picture in folder.rglob("*.png"):
            picture.rename(picture.with_name(f"{number}-{picture.name}"))
        parts[name] = folder
    with (
        running_daemon({"colours": parts["north"]}, state=tmp_path / "one") as one,
        running_daemon({"colours": parts["south"]}, state=tmp_path / "two") as two,
    ):
        addresses = [daemon.serving.address for daemon in (one, two)]
        push(registry, addresses, "plain")
        data = hw.open([f"{address}/colours" for address in addresses])
        augment = T.Compose([T.RandomResizedCrop(32, scale=(0.5, 1.0)), T.RandomHorizontalFlip()])
        recipe = Recipe(epochs=3, runs=2, batch_size=32, cut="features", variants=2, seed=3)
        tuner = Tuner(data, "plain", registry=registry, recipe=recipe, augment=augment)
        assert tuner.plan().stores == 2
        watch = StopAt()
        done = tuner.fit("tuned", watch=watch)
        data.close()
    assert done.accuracy[-1] == 1.0
    assert set(watch.stores) == {address.partition("://")[2] for address in addresses}
    assert all(sent == wanted for sent, wanted in watch.stores.values())
    assert sum(sent for sent, _ in watch.stores.values()) == 2 * 162 + 18
    assert done.measured.bytes == (2 * 162 + 18) * 48


class _Restart(StopAt):
    """Kills the store and starts it again once the second lot of features is here."""

    def __init__(self, store: StoreProcess) -> None:
        super().__init__()
        self.process = store

    def features(self, done: int, total: int) -> None:
        super().features(done, total)
        if len([told for told in self.told if told[0] == "features"]) == 2:
            self.process.restart()


def test_a_store_that_is_killed_and_comes_back(
    colours: Path, registry: Registry, expected: str, tmp_path: Path
) -> None:
    with StoreProcess({"colours": colours}, state=tmp_path / "state") as store:
        push(registry, [store.address], "plain")
        data = hw.open(f"{store.address}/colours", link=PATIENT)
        watch = _Restart(store)
        done = Tuner(data, "plain", registry=registry, recipe=RECIPE).fit("tuned", watch=watch)
        data.close()
    assert done.version.tensors["head/weight"].digest == expected
    assert done.measured.bytes >= 180 * 48


def test_a_store_that_stays_away_is_told_and_the_same_call_goes_on(
    colours: Path, registry: Registry, expected: str, tmp_path: Path
) -> None:
    class Kill(_Restart):
        def features(self, done: int, total: int) -> None:
            StopAt.features(self, done, total)
            if len(self.told) == 1:
                self.process.kill()

    link = Link(deadline_seconds=2.0, give_up_seconds=1.0)
    with StoreProcess({"colours": colours}, state=tmp_path / "state") as store:
        push(registry, [store.address], "plain")
        data = hw.open(f"{store.address}/colours", link=link)
        tuner = Tuner(data, "plain", registry=registry, recipe=RECIPE)
        # The features of the second run are asked for when those of the first are here.
        with pytest.raises(Unreachable):
            tuner.fit("tuned", watch=Kill(store))
        store.restart()
        done = tuner.fit("tuned")
        data.close()
    assert done.resumed
    assert done.version.tensors["head/weight"].digest == expected


def test_of_replicas_another_takes_over(colours: Path, registry: Registry, tmp_path: Path) -> None:
    """One of two was planned for, and is killed: features go on to come, and are those that it would send."""
    link, version = Link(deadline_seconds=2.0, give_up_seconds=1.0), registry.current("plain")
    steps = Pipeline.from_spec(version.steps, catalogue())
    with (
        StoreProcess({"colours": colours}, state=tmp_path / "one") as one,
        StoreProcess({"colours": colours}, state=tmp_path / "two") as two,
    ):
        push(registry, [one.address, two.address], "plain")
        data = hw.open([f"{store.address}/colours" for store in (one, two)], link=link)
        source = AtStores(data, version, seed=0, stores=1)
        positions = data.positions()
        before = list(source.run(positions, data.ids, steps=steps, variant=0))
        one.kill()
        after = list(source.run(positions, data.ids, steps=steps, variant=0))
        source.close()
        data.close()
    for first, then in zip(before, after, strict=True):
        assert np.array_equal(first.ids, then.ids)
        assert np.array_equal(first.features, then.features)


def test_the_command_brings_the_model_there_and_the_result_back(
    colours: Path, registry: Registry, expected: str, tmp_path: Path
) -> None:
    """Killed by SIGKILL once on its way; the same command ends as if nothing had been."""
    with StoreProcess({"colours": colours}, state=tmp_path / "state") as store:
        words = [
            *("finetune", f"{store.address}/colours", "--model", "plain", "--registry", str(registry.folder)),
            *("--epochs", "3", "--runs", "2", "--batch-size", "32", "--cut", "features", "--name", "tuned"),
            *("--sync", "--json"),
        ]
        command = [sys.executable, "-m", "headwater.cli", *words]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
            _wait_for(tmp_path / "cache" / "finetune", process)
            process.kill()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, timeout=120)
        with models_of(store.address, token=None, link=Link()) as models:
            held = models.inventory()
    version = registry.current("tuned")
    assert version.tensors["head/weight"].digest == expected
    assert {name: digests[0] for name, digests in held.current.items()} == {"tuned": version.digest}


def tune_by_command(
    stores: Sequence[StoreProcess], registry: Registry, wish: str, *words: str
) -> dict[str, Any]:
    """What `headwater finetune --labels WISH` says where no label database is named, nor lies here."""
    home = registry.folder.parent / "home"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    environment = {**environment, "XDG_DATA_HOME": str(home), "HEADWATER_LABELS": ""}
    command = [
        sys.executable,
        "-m",
        "headwater.cli",
        "finetune",
        *(f"{one.address}/colours" for one in stores),
    ]
    command += ["--registry", str(registry.folder), "--model", "plain", "--labels", wish, "--epochs", "3"]
    command += ["--runs", "2", "--batch-size", "32", "--json", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, timeout=240, check=True)
    assert not home.exists(), "nothing was looked for here"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_labels_that_a_store_keeps_are_learnt_from_afar(
    colours: Path, registry: Registry, tmp_path: Path
) -> None:
    """Those of a relabel, and a human's corrections at the store; as on its own machine."""
    wish, laptop = "human+model>=0.2", hw.open(colours)
    with StoreProcess({"colours": colours}, state=tmp_path / "state") as store:
        push(registry, [store.address], "plain")
        (job,) = relabel_at([f"{store.address}/colours"])
        assert job.ok
        with closing(open_labels(tmp_path / "state" / "labels.db")) as database:
            label = database.adopt("colours", ["a human's"])[0]
            database.write("colours", LabelRows.of(laptop.ids[::9], [label] * 20, source=Source.HUMAN))
            here = labels_from(database, "colours", dataset=laptop, wish=wish)
            counts = database.counts("colours")
        found = tune_by_command([store], registry, wish, "--cut", "features", "--name", "tuned")
    assert counts["a human's"][Source.HUMAN] == 20
    assert 20 < len(here) <= 180
    assert found["made"]["samples"] + found["made"]["held"] == len(here)
    assert registry.current("tuned").classes == here.classes
    alone = Tuner(laptop, "plain", registry=registry, recipe=LAPTOP, labels=here).fit("laptop")
    assert registry.current("tuned").tensors["head/weight"] == alone.version.tensors["head/weight"]


def test_labels_of_replicas_and_shards_are_learnt_together(
    colours: Path, registry: Registry, tmp_path: Path
) -> None:
    """Each of three stores has a database of its own; two of them have the same pictures."""
    south = write_colours(tmp_path / "south", 10)
    for picture in south.rglob("*.png"):
        picture.rename(picture.with_name(f"south-{picture.name}"))
    north_ids, south_ids = (np.asarray(hw.open(folder).ids) for folder in (colours, south))
    given = {
        "one": (north_ids[:100], "sky"),
        "two": (north_ids[90:120], "leaf"),
        "three": (south_ids, "brick"),
    }
    with ExitStack() as stack:
        stores = []
        for (name, (ids, said)), folder in zip(given.items(), (colours, colours, south), strict=True):
            (tmp_path / name).mkdir()
            with closing(open_labels(tmp_path / name / "labels.db")) as database:
                labels = [database.adopt("colours", [said])[0]] * len(ids)
                database.write("colours", LabelRows.of(ids, labels, source=Source.HUMAN))
            stores.append(stack.enter_context(StoreProcess({"colours": folder}, state=tmp_path / name)))
        found = tune_by_command(stores, registry, "human", "--cut", "images", "--name", "tuned")
        with closing(hw.open([f"{store.address}/colours" for store in stores])) as data:
            learnt = labels_from(dataset=data, wish="human")
    assert registry.current("tuned").classes == ("brick", "leaf", "sky")
    assert found["made"]["samples"] + found["made"]["held"] == 150
    # What the second replica says of ten samples that both know was said later.
    assert np.bincount(learnt.labels).tolist() == [30, 30, 90]


def _wait_for(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Until features begin to come, or the process is done already."""
    while process.poll() is None and not list(folder.glob("*/features.log")):
        time.sleep(0.01)


def test_damaged_pictures_at_a_store_are_counted(registry: Registry, tmp_path: Path) -> None:
    folder = write_colours(tmp_path / "data", 30)
    picture = folder / "red" / "0003.png"
    picture.write_bytes(picture.read_bytes()[:300])
    with running_daemon({"colours": folder}, state=tmp_path / "state") as daemon:
        address = daemon.serving.address
        push(registry, [address], "plain")
        data = hw.open(f"{address}/colours")
        done = Tuner(data, "plain", registry=registry, recipe=RECIPE).fit("tuned")
        data.close()
    assert done.failed == 1
    assert list(done.errors) == ["red/0003.png"]
    assert np.isfinite(done.losses[0]).all()
