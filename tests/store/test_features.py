"""Features and images that are kept come back to the bit, with their norms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headwater.data.index import Index
from headwater.data.pipeline import Pipeline
from headwater.data.steps import catalogue
from headwater.engine.drawer import DATA
from headwater.errors import ModelError
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.plan.movement import norms_of
from headwater.store import features as module
from headwater.store.cabinet import Cabinet
from headwater.store.features import OWN, Features, Pictures, Variation
from relabelling import FEATURES, STEPS, nudged, small_model

INDEX = Index.build([f"{number}.jpg" for number in range(50)], np.arange(50) + 10)
PLACES = np.arange(0, 50, 2)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "models")


@pytest.fixture
def version(registry: Registry) -> ModelVersion:
    return registry.put(small_model(), name="small")


@pytest.fixture
def cabinet(tmp_path: Path) -> Cabinet:
    return Cabinet(tmp_path / "features", most_bytes=1 << 20)


def some(seed: int = 0, count: int = len(PLACES)) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, FEATURES)).astype(np.float16)


def test_features_come_back(cabinet: Cabinet, version: ModelVersion, tmp_path: Path) -> None:
    rows = some()
    features = Features(cabinet, INDEX, dataset="photos", version=version)
    features.put(PLACES, rows)
    cabinet.close()
    for where in (Cabinet(tmp_path / "features", most_bytes=1 << 20),):
        kept = Features(where, INDEX, dataset="photos", version=version)
        places, found = kept.get(INDEX.ids)
        assert places.tolist() == PLACES.tolist()
        np.testing.assert_array_equal(found, rows)
        norms = kept.norms(INDEX.ids)
        np.testing.assert_array_equal(norms[PLACES], norms_of(rows))
        assert np.isnan(norms[PLACES + 1]).all()
        assert len(kept) == len(PLACES)


def test_another_head_finds_the_same_and_another_trunk_does_not(
    cabinet: Cabinet, registry: Registry, version: ModelVersion
) -> None:
    Features(cabinet, INDEX, dataset="photos", version=version).put(PLACES, some())
    head = registry.put(nudged(small_model(), 0.1), name="small")
    trunk = registry.put(small_model(5), name="small")
    assert len(Features(cabinet, INDEX, dataset="photos", version=head)) == len(PLACES)
    assert not len(Features(cabinet, INDEX, dataset="photos", version=trunk))
    assert not len(Features(cabinet, INDEX, dataset="others", version=version))
    other = Variation(seed=1)
    assert not len(Features(cabinet, INDEX, dataset="photos", version=version, variation=other))


def test_other_libraries_make_other_features(
    cabinet: Cabinet, version: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    Features(cabinet, INDEX, dataset="photos", version=version).put(PLACES, some())
    assert {"pillow", "onnxruntime"} <= set(module.libraries())
    for name in module.libraries():
        upgraded = {**module.libraries(), name: "99.0"}
        with monkeypatch.context() as patched:
            patched.setattr(module, "libraries", lambda found=upgraded: found)
            assert not len(Features(cabinet, INDEX, dataset="photos", version=version)), name
    assert len(Features(cabinet, INDEX, dataset="photos", version=version)) == len(PLACES)


def test_norms_of_what_was_here_at_a_time(version: ModelVersion, tmp_path: Path) -> None:
    cabinet = Cabinet(tmp_path / "features", most_bytes=1 << 20, clock=lambda: 5.0)
    features = Features(cabinet, INDEX, dataset="photos", version=version)
    features.put(np.arange(4), some(count=4))
    times = np.array([5000, 4999, 0, 6000, 6000])
    assert np.isfinite(features.norms(INDEX.ids[:5], times)).tolist() == [True, False, False, True, False]
    assert np.isfinite(features.norms(INDEX.ids[:5])).sum() == 4


def test_a_damaged_row_is_not_there(cabinet: Cabinet, version: ModelVersion, tmp_path: Path) -> None:
    features = Features(cabinet, INDEX, dataset="photos", version=version)
    features.put(PLACES, some())
    cabinet.close()
    (data,) = tmp_path.rglob(DATA)
    content = bytearray(data.read_bytes())
    content[2 * FEATURES * 3] ^= 1
    data.write_bytes(content)
    kept = Features(
        Cabinet(tmp_path / "features", most_bytes=1 << 20), INDEX, dataset="photos", version=version
    )
    places, found = kept.get(INDEX.ids)
    assert places.tolist() == [place for place in PLACES.tolist() if place != PLACES[3]]
    np.testing.assert_array_equal(found, np.delete(some(), 3, axis=0))


def test_nothing_to_put_and_nothing_to_get(cabinet: Cabinet, version: ModelVersion) -> None:
    features = Features(cabinet, INDEX, dataset="photos", version=version)
    features.put(PLACES[:0], some(count=0))
    places, found = features.get(INDEX.ids[:0])
    assert (len(places), found.shape) == (0, (0, FEATURES))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_images_come_back(cabinet: Cabinet, codec: str) -> None:
    pipeline = Pipeline.from_spec(STEPS, catalogue()).samplewise
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (5 + place % 3, 7, 3)).astype(np.uint8) for place in PLACES]
    Pictures(cabinet, INDEX, dataset="photos", pipeline=pipeline, codec=codec).put(PLACES, images)
    kept = Pictures(cabinet, INDEX, dataset="photos", pipeline=pipeline, codec=codec)
    found = kept.get(INDEX.ids)
    assert sorted(found) == PLACES.tolist()
    for place, image in zip(PLACES.tolist(), images, strict=True):
        np.testing.assert_array_equal(found[place], image)
    shorter = Pipeline(pipeline.steps[:1])
    assert not Pictures(cabinet, INDEX, dataset="photos", pipeline=shorter, codec=codec).get(INDEX.ids)


def test_variations_differ_in_their_keys(version: ModelVersion) -> None:
    flips = [*STEPS[:-1], {"name": "random_horizontal_flip"}]
    ways = [
        OWN,
        Variation(seed=1),
        Variation(epoch=1),
        Variation(flips),
        Variation(flips, 1),
        Variation(flips, 1, 2),
    ]
    assert len({way.key for way in ways}) == len(ways)
    assert [way.is_own for way in ways] == [True] + [False] * 5
    assert [step.name for step in OWN.pipeline(version).steps] == ["decode", "pad_to_fit", "central_box"]
    assert [step.name for step in ways[3].pipeline(version).steps][-1] == "random_horizontal_flip"


def test_steps_begin_with_the_decoder(version: ModelVersion) -> None:
    with pytest.raises(ModelError, match="begin with decode"):
        Variation(STEPS[1:]).pipeline(version)
