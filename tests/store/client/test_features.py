"""Features over the wire: from a store, from replicas of which one lacks the model, and from shards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from graphs import make_model, make_tensors
from headwater import transforms as T
from headwater.engine.crew import Crew
from headwater.engine.inference import FeatureBatch, Gathering
from headwater.engine.meter import Meter
from headwater.errors import ModelNotFound, SampleCorrupt, StoreLost, WrongUse
from headwater.models.cutting import find_crossings
from headwater.models.model import Model
from headwater.models.parts import LastLayers
from headwater.models.registry import Registry
from headwater.models.runtime import Engine
from headwater.models.version import ModelVersion
from headwater.store.client.link import Link
from headwater.store.gathering import feature_reader
from headwater.store.server.daemon import Daemon
from relabelling import CLASSES, STEPS, small_model, write_photos
from stores import running_daemon

COUNT, BROKEN = 150, 2
QUICK = Link(deadline_seconds=5, give_up_seconds=10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("features")
    write_photos(made / "photos", COUNT, broken=BROKEN)
    write_photos(made / "more", 40, name="other-")
    Registry(made / "state" / "models").put(small_model(), name="small", switch=True)
    return made


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[Daemon]:
    served = {"photos": folder / "photos", "more": folder / "more"}
    with running_daemon(served, state=folder / "state") as made:
        yield made


@pytest.fixture(scope="module")
def version(folder: Path) -> ModelVersion:
    return Registry(folder / "state" / "models").current("small")


def wide_model() -> Model:
    """512 features, of which half are always zero."""
    tensors = make_tensors(0, classes=len(CLASSES), features=512)
    tensors["trunk/conv.bias"][::2] = -1000
    return replace(make_model(tensors=tensors), classes=CLASSES, steps=STEPS)


def gather(
    data: hw.Dataset, version: ModelVersion, *, trunk: str = "", meter: Meter | None = None, **more: object
) -> list[FeatureBatch]:
    gathering = Gathering(
        lambda: feature_reader(
            data.store,
            trunk or version.trunk_digest,
            width=version.features,
            **more,  # type: ignore[arg-type]
        ),
        version.features,
        Crew(1, 4, patient=True),
        meter or Meter(),
    )
    try:
        return list(gathering.run(data.positions(), data.ids))
    finally:
        gathering.crew.close()


def by_id(batches: list[FeatureBatch]) -> dict[int, bytes]:
    return {
        int(id): row.tobytes() for batch in batches for id, row in zip(batch.ids, batch.features, strict=True)
    }


def crop(image: np.ndarray) -> np.ndarray:
    top, left = (image.shape[0] - 8) // 2, (image.shape[1] - 8) // 2
    return image[top : top + 8, left : left + 8]


def test_all_samples_of_a_store(daemon: Daemon, folder: Path, version: ModelVersion) -> None:
    remote, local = hw.open(f"{daemon.serving.address}/photos"), hw.open(folder / "photos")
    batches = gather(remote, version)
    assert [len(batch.ids) + len(batch.failures) for batch in batches] == [64, 64, 24]
    failed = [one for batch in batches for one in batch.failures]
    assert {remote.index.key(one.position) for one in failed} == {"broken-0.jpg", "broken-1.jpg"}
    assert all(isinstance(one.error, SampleCorrupt) for one in failed)
    engine = Engine(small_model())
    for batch in batches:
        images = np.stack([crop(local[int(position)].decode()) for position in batch.positions])
        np.testing.assert_allclose(batch.features, engine.features(images), rtol=2e-3, atol=2e-3)
    assert by_id(gather(remote, version)) == by_id(batches), "the second time they come as they were kept"
    remote.close()


def test_steps_of_the_tuners_own(daemon: Daemon, version: ModelVersion) -> None:
    remote = hw.open(f"{daemon.serving.address}/photos")
    steps = T.Compose([T.RandomCrop(8)]).spec()
    first = by_id(gather(remote, version, steps=steps, seed=3))
    assert first == by_id(gather(remote, version, steps=steps, seed=3))
    assert first != by_id(gather(remote, version, steps=steps, seed=4))
    remote.close()


def test_what_crosses_at_a_cut_comes_in_pieces_that_the_store_answers(
    folder: Path, version: ModelVersion, tmp_path: Path
) -> None:
    """Five samples of 1,536 bytes are all that this store sends at once."""
    shutil.copytree(folder / "state", tmp_path / "state")
    with running_daemon({"more": folder / "more"}, state=tmp_path / "state", request_bytes=8000) as daemon:
        data = hw.open(f"{daemon.serving.address}/more")
        cut = find_crossings(small_model().trunk).find("b")
        reader = feature_reader(data.store, version.trunk_digest, width=cut.width, cut="b")
        rest = LastLayers(small_model(), cut)
        gathering = Gathering(lambda: reader, cut.width, Crew(2, 4, patient=True), rest=rest)
        batches = list(gathering.run(data.positions(), data.ids))
        gathering.crew.close()
        whole = gather(data, version)
        data.close()
    assert gathering.meter.stats().bytes_moved == 40 * 1536
    for one, other in zip(batches, whole, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_allclose(one.features, other.features, rtol=4e-3, atol=4e-3)


def test_features_cross_in_fewer_bytes_than_they_have(folder: Path, tmp_path: Path) -> None:
    wide = wide_model()
    version = Registry(tmp_path / "state" / "models").put(wide, name="wide", switch=True)
    with running_daemon({"more": folder / "more"}, state=tmp_path / "state") as daemon:
        data = hw.open(f"{daemon.serving.address}/more")
        meter = Meter()
        (batch,) = gather(data, version, meter=meter)
        data.close()
    local = hw.open(folder / "more")
    images = np.stack([crop(local[int(position)].decode()) for position in batch.positions])
    right = Engine(wide).features(images)
    np.testing.assert_allclose(batch.features, right, rtol=2e-3, atol=2e-3)
    assert 0 < meter.stats().bytes_moved < 0.9 * batch.features.nbytes


def test_a_trunk_that_no_store_has(daemon: Daemon, version: ModelVersion) -> None:
    remote = hw.open(f"{daemon.serving.address}/photos", link=QUICK)
    with pytest.raises(ModelNotFound, match="push it first"):
        gather(remote, version, trunk="0" * 32)
    remote.close()


def test_a_replica_without_the_model_is_passed_over(
    daemon: Daemon, folder: Path, version: ModelVersion, tmp_path: Path
) -> None:
    with running_daemon({"photos": folder / "photos"}, state=tmp_path / "empty") as bare:
        stores = [f"{one.serving.address}/photos" for one in (bare, daemon)]
        data = hw.open(stores, link=QUICK)
        assert len(by_id(gather(data, version))) == COUNT
        data.close()


def test_shards_are_one_dataset(daemon: Daemon, folder: Path, version: ModelVersion) -> None:
    data = hw.open([f"{daemon.serving.address}/photos", f"{daemon.serving.address}/more"])
    assert len(data) == COUNT + BROKEN + 40
    found = by_id(gather(data, version))
    assert len(found) == COUNT + 40
    alone = hw.open(f"{daemon.serving.address}/more")
    assert by_id(gather(alone, version)).items() <= found.items()
    for one in (data, alone):
        one.close()


def test_a_store_that_is_gone(folder: Path, version: ModelVersion, tmp_path: Path) -> None:
    with running_daemon({"more": folder / "more"}) as daemon:
        data = hw.open(f"{daemon.serving.address}/more", link=Link(deadline_seconds=0.5, give_up_seconds=1.0))
    with pytest.raises(StoreLost, match="fetching features"):
        gather(data, version)
    data.close()


def test_local_data_is_no_store(folder: Path, version: ModelVersion) -> None:
    with pytest.raises(WrongUse, match="is no store"):
        gather(hw.open(folder / "photos"), version)
