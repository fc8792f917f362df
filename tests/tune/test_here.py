"""The relabel job without a store: the same labels, kept features, and a second process that does without."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from headwater.errors import ModelNotFound
from headwater.models.registry import Registry
from headwater.store.jobs.record import DONE, JobRecord
from headwater.store.labels import LabelRows, open_labels
from headwater.store.labels.database import LabelDatabase
from headwater.tune.here import relabel_here
from headwater.tune.relabel import Wish
from relabelling import nudged, small_model, write_photos

WISH = Wish("photos")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> hw.Dataset:
    return hw.open(write_photos(tmp_path_factory.mktemp("photos"), 100, broken=1))


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    made = Registry(tmp_path / "models")
    made.put(small_model(), name="small", switch=True)
    return made


@pytest.fixture
def labels(tmp_path: Path) -> Iterator[LabelDatabase]:
    with closing(open_labels(tmp_path / "labels.db")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def rows(labels: LabelDatabase, data: hw.Dataset) -> LabelRows:
    return labels.get("photos", data.ids)


def test_local_data_is_labelled_and_progress_is_told(
    data: hw.Dataset, registry: Registry, labels: LabelDatabase
) -> None:
    seen: list[JobRecord] = []
    done = relabel_here(data, registry, labels, WISH, watch=seen.append)
    assert (done.state, done.counts["labelled"], done.counts["failed"]) == (DONE, 100, 1)
    assert [one.key for one in done.failures] == ["broken-0.jpg"]
    assert len(rows(labels, data)) == 100
    assert seen[-1] == done
    assert done.cursor == done.total == 101


def test_kept_features_make_a_new_head_cheap(
    data: hw.Dataset, registry: Registry, labels: LabelDatabase, cache: Path, tmp_path: Path
) -> None:
    relabel_here(data, registry, labels, WISH, feature_bytes=1 << 20)
    assert list((cache / "features").iterdir())
    registry.put(nudged(small_model(), 0.02), name="small", switch=True)
    done = relabel_here(data, registry, labels, WISH, feature_bytes=1 << 20)
    assert done.counts["skipped"] > 50
    with closing(open_labels(tmp_path / "other.db")) as other:
        relabel_here(data, registry, other, WISH)
        np.testing.assert_array_equal(rows(other, data).labels, rows(labels, data).labels)


def test_a_second_process_does_without_the_features(
    data: hw.Dataset,
    registry: Registry,
    labels: LabelDatabase,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache.mkdir()
    with (cache / "features.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = relabel_here(data, registry, labels, WISH, feature_bytes=1 << 20)
    assert done.counts["labelled"] == 100
    assert "another process uses" in caplog.text
    assert not list((cache / "features").iterdir())


def test_one_model_need_not_be_named_and_several_must(
    data: hw.Dataset, registry: Registry, labels: LabelDatabase
) -> None:
    second = registry.put(small_model(4), name="second", switch=True)
    with pytest.raises(ModelNotFound, match="name one of second, small"):
        relabel_here(data, registry, labels, WISH)
    done = relabel_here(data, registry, labels, Wish("photos", "second"))
    assert done.model == second.digest
    with pytest.raises(ModelNotFound, match="push one first"):
        relabel_here(data, Registry(registry.folder.parent / "empty"), labels, WISH)
