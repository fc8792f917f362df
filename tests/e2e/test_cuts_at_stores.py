"""Fine-tuning with frozen layers on both sides of the link: the same head, and what crosses is counted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import headwater as hw
from headwater import transforms as T
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.errors import ModelError, ModelNotFound, WrongUse
from headwater.models.registry import Registry
from headwater.plan.finetune.choice import DOUBT, TIE
from headwater.store.client.remote import RemoteStore
from headwater.store.gathering import feature_reader
from headwater.store.pushing import push
from headwater.store.server.daemon import Daemon
from headwater.tune.recipe import Recipe
from headwater.tune.sources import AtStores, Behind, Sources
from headwater.tune.tuner import Tuner
from stores import StoreProcess, running_daemon
from tunings import Interrupted, StopAt, make_registry, write_colours

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CUT, WIDTH = "hardtanh_2", 24 * 8 * 8
RECIPE = Recipe(epochs=3, runs=2, batch_size=32, cut=CUT)
FEATURES = replace(RECIPE, cut="features")


@pytest.fixture(autouse=True)
def cache(tuning_cache: Path) -> Path:
    return tuning_cache


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_colours(tmp_path_factory.mktemp("colours"))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    return make_registry(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def daemon(colours: Path, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon({"colours": colours}, state=tmp_path_factory.mktemp("state")) as made:
        push(registry, [made.serving.address], "plain")
        yield made


@pytest.fixture
def data(daemon: Daemon) -> Iterator[hw.Dataset]:
    opened = hw.open(f"{daemon.serving.address}/colours")
    yield opened
    opened.close()


def all_features(data: hw.Dataset, registry: Registry, cut: str) -> np.ndarray:
    """By way of a cut, or of all layers at the store."""
    version = registry.current("plain")
    sources = Sources(data, version, registry.get(version.digest), seed=0)
    source = sources.behind(cut, 1) if cut else sources.at_stores(1)
    steps = Pipeline.from_spec(version.steps, catalogue())
    try:
        batches = list(source.run(data.positions(), data.ids, steps=steps, variant=0))
    finally:
        source.close()
    np.testing.assert_array_equal(np.concatenate([batch.ids for batch in batches]), data.ids)
    return np.concatenate([batch.features for batch in batches])


def test_features_are_the_same_at_every_cut(data: hw.Dataset, registry: Registry) -> None:
    expected = all_features(data, registry, "")
    for cut in Sources(data, registry.current("plain"), registry.get("plain"), seed=0).crossings.names:
        np.testing.assert_allclose(all_features(data, registry, cut), expected, rtol=4e-3, atol=4e-3)


def test_the_head_is_as_good_and_the_bytes_are_those_of_the_cut(data: hw.Dataset, registry: Registry) -> None:
    done = Tuner(data, "plain", registry=registry, recipe=RECIPE).fit("cut")
    other = Tuner(data, "plain", registry=registry, recipe=FEATURES).fit("whole")
    assert done.plan.cut.name == CUT
    assert (done.version.made["cut"], "cut" in other.version.made) == (CUT, False)
    assert done.measured.bytes == 180 * WIDTH * 2
    assert done.plan.bytes == 180 * WIDTH * 2
    assert done.accuracy[-1] == pytest.approx(other.accuracy[-1], abs=0.02)
    assert other.accuracy[-1] == 1.0
    heads = [registry.get(one.version.digest).tensors["head/weight"] for one in (done, other)]
    np.testing.assert_allclose(heads[0], heads[1], rtol=0.05, atol=0.05 * np.abs(heads[1]).max())
    assert done.version.trunk_digest == other.version.trunk_digest


def test_the_plan_looks_inside_and_says_so(data: hw.Dataset, registry: Registry) -> None:
    plan = Tuner(data, "plain", registry=registry, recipe=Recipe(epochs=3)).plan()
    names = [option.cut.name for option in plan.options]
    assert (names[0], names[-1]) == ("images", "features")
    assert set(names[1:-1]) <= {"hardtanh", "hardtanh_1"}
    assert not any(option.ships_more for option in plan.options)
    assert "of 7 cuts between the layers were looked at" in plan.reason
    chosen = next(option for option in plan.options if option.cut == plan.cut)
    assert chosen.seconds <= DOUBT * (1 + TIE) * min(option.seconds for option in plan.options)
    inner = next(option.cut for option in plan.options if option.cut.name == "hardtanh")
    images, features = plan.options[0].cut, plan.options[-1].cut
    assert 0 < inner.store_seconds < features.store_seconds
    assert 0 < inner.tuner_seconds < images.tuner_seconds


def test_larger_than_the_images_only_if_allowed(data: hw.Dataset, registry: Registry) -> None:
    """16 x 16 x 16 numbers, and pictures of some 5 kB."""
    wide = replace(RECIPE, cut="hardtanh_1")
    with pytest.raises(WrongUse, match="'hardtanh_1', 8,192 bytes would cross for an image of"):
        Tuner(data, "plain", registry=registry, recipe=wide).plan()
    allowed = replace(wide, more_bytes=True)
    done = Tuner(data, "plain", registry=registry, recipe=allowed).fit("wide")
    assert done.measured.bytes == 180 * 8192
    assert done.accuracy[-1] == 1.0
    free = Tuner(data, "plain", registry=registry, recipe=Recipe(epochs=3, more_bytes=True)).plan()
    assert "hardtanh_1" in [option.cut.name for option in free.options]


def test_an_unknown_cut_is_told_the_others(data: hw.Dataset, registry: Registry, colours: Path) -> None:
    tuner = Tuner(data, "plain", registry=registry, recipe=replace(RECIPE, cut="conv9"))
    with pytest.raises(
        WrongUse, match="cannot be cut at 'conv9'; choose from images, features, getitem, hard"
    ):
        tuner.plan()
    with pytest.raises(WrongUse, match="lies here"):
        Tuner(hw.open(colours), "plain", registry=registry, recipe=RECIPE).plan()


def test_interrupted_it_goes_on_to_the_same_head(data: hw.Dataset, registry: Registry) -> None:
    def tuner() -> Tuner:
        return Tuner(data, "plain", registry=registry, recipe=RECIPE)

    expected = tuner().fit("again").version.digest
    with pytest.raises(Interrupted):
        tuner().fit("again", watch=StopAt(3))
    done = tuner().fit("again")
    assert done.resumed
    assert done.version.digest == expected
    assert 0 < done.measured.bytes < 180 * WIDTH * 2, "what was here did not come again"


def test_a_store_that_is_killed_and_comes_back(colours: Path, registry: Registry, tmp_path: Path) -> None:
    class Restart(StopAt):
        def features(self, done: int, total: int) -> None:
            super().features(done, total)
            if len([told for told in self.told if told[0] == "features"]) == 2:
                store.restart()

    with StoreProcess({"colours": colours}, state=tmp_path / "state") as store:
        push(registry, [store.address], "plain")
        data = hw.open(f"{store.address}/colours", link=hw.Link(give_up_seconds=120.0))
        done = Tuner(data, "plain", registry=registry, recipe=RECIPE).fit("killed", watch=Restart())
        data.close()
    assert done.accuracy[-1] == 1.0
    assert done.measured.bytes >= 180 * WIDTH * 2


def test_values_beyond_half_precision(data: hw.Dataset, registry: Registry, daemon: Daemon) -> None:
    """The first convolution of this one gives millions; the bound behind it keeps all others small."""
    model = registry.get("plain")
    loud = {**model.tensors, "trunk/0.weight": 1e8 * model.tensors["trunk/0.weight"]}
    version = registry.put(model.with_tensors(loud), name="loud", switch=True)
    push(registry, [daemon.serving.address], "loud")
    with pytest.raises(ModelError, match="'getitem' do not fit into half precision"):
        Tuner(data, "loud", registry=registry, recipe=replace(RECIPE, cut="getitem")).plan()
    sources = Sources(data, version, registry.get(version.digest), seed=0)
    source = sources.behind("getitem", 1)
    steps = Pipeline.from_spec(version.steps, catalogue())
    (batch,) = source.run(data.positions()[:5], data.ids[:5], steps=steps, variant=0)
    source.close()
    assert len(batch.failures) == 5
    assert "its values at the cut 'getitem' are not finite" in str(batch.failures[0].error)
    assert "up to 65,504" in str(batch.failures[0].error)


def test_a_store_of_before_is_not_asked_for_a_cut(data: hw.Dataset, registry: Registry) -> None:
    """It would pass over the name and send features, which may be as wide."""
    assert isinstance(data.store, RemoteStore)
    known = data.store.known
    welcomes = {name: msgspec.structs.replace(one, cuts=False) for name, one in known.welcomes.items()}
    data.store.known = replace(known, welcomes=welcomes)
    version = registry.current("plain")
    with pytest.raises(ModelError, match="too old to cut layers"):
        feature_reader(data.store, version.trunk_digest, width=24, cut="mean")
    plan = Tuner(data, "plain", registry=registry, recipe=Recipe(epochs=3)).plan()
    assert [option.cut.name for option in plan.options] == ["images", "features"]
    assert "no cut between the layers: store" in plan.reason
    with pytest.raises(ModelError, match="too old"):
        Tuner(data, "plain", registry=registry, recipe=RECIPE).plan()


def test_a_cut_that_the_store_does_not_know(data: hw.Dataset, registry: Registry) -> None:
    version = registry.current("plain")
    source = Sources(data, version, registry.get(version.digest), seed=0)
    cut = replace(source.crossings.find("hardtanh"), name="nowhere")
    with pytest.raises(ModelNotFound, match="no cut 'nowhere'"):
        source.behind("nowhere", 1)
    behind = Behind(cut, Behind.of(source.model, source.crossings.find("hardtanh")).layers)
    asked = AtStores(data, version, seed=0, stores=1, behind=behind)
    steps = Pipeline.from_spec(version.steps, catalogue())
    with pytest.raises(ModelNotFound, match="no cut 'nowhere'; there are: getitem, hardtanh"):
        list(asked.run(data.positions(), data.ids, steps=steps, variant=0))
    asked.close()


def test_shards_run_their_part_of_the_layers(registry: Registry, tmp_path: Path) -> None:
    parts = {}
    for number, name in enumerate(("north", "south")):
        parts[name] = write_colours(tmp_path / name, 30)
        for picture in parts[name].rglob("*.png"):
            picture.rename(picture.with_name(f"{number}-{picture.name}"))
    with (
        running_daemon({"colours": parts["north"]}, state=tmp_path / "one") as one,
        running_daemon({"colours": parts["south"]}, state=tmp_path / "two") as two,
    ):
        addresses = [daemon.serving.address for daemon in (one, two)]
        push(registry, addresses, "plain")
        data = hw.open([f"{address}/colours" for address in addresses])
        augment = T.Compose([T.RandomResizedCrop(32, scale=(0.5, 1.0)), T.RandomHorizontalFlip()])
        recipe = replace(RECIPE, variants=2, seed=3)
        done = Tuner(data, "plain", registry=registry, recipe=recipe, augment=augment).fit("shards")
        data.close()
    assert done.accuracy[-1] == 1.0
    assert done.measured.bytes == (2 * 162 + 18) * WIDTH * 2


def test_the_command_takes_the_name_of_a_cut(daemon: Daemon, registry: Registry, tmp_path: Path) -> None:
    words = [
        *("finetune", f"{daemon.serving.address}/colours", "--model", "plain", "--cut", CUT),
        *("--registry", str(registry.folder), "--epochs", "3", "--batch-size", "32", "--name", "called"),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "headwater.cli", *words]
    shown = subprocess.run(
        [*command, "--dry-run"], check=True, capture_output=True, env=environment, timeout=120
    )
    assert f"{CUT} *" in shown.stdout.decode()
    subprocess.run(command, check=True, capture_output=True, env=environment, timeout=120)
    assert registry.current("called").made["accuracy"][-1] == 1.0
    other = ["conv9" if word == CUT else word for word in command]
    wrong = subprocess.run(other, capture_output=True, env=environment, timeout=120)
    assert wrong.returncode == 2
    assert "choose from images, features, getitem" in " ".join(wrong.stderr.decode().split())
