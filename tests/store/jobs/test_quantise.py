"""int8 by a job: on images of the data, a version if the labels stay, else a line that says why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import headwater as hw
from exports import as_they_are, brittle, fitted
from headwater.errors import DatasetStale, WrongUse
from headwater.models.model import Model
from headwater.models.quantise import MOST_IMAGES, divide
from headwater.models.registry import Registry
from headwater.models.runtime import precision_of
from headwater.models.version import ModelVersion
from headwater.store.jobs import quantise as module
from headwater.store.jobs.quantise import Kiln, quantise
from headwater.store.jobs.record import JobRecord
from headwater.store.jobs.runner import Running
from headwater.tune.quantise import QuantiseWish, _extraction, quantise_here
from nets import SIZE
from tunings import write_colours


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> hw.Dataset:
    """Three classes, one after the other, and one file that is no picture."""
    folder = write_colours(tmp_path_factory.mktemp("colours"), 60, size=SIZE)
    (folder / "green" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return hw.open(folder)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "models")


def put(registry: Registry, model: Model, *, switch: bool = True) -> ModelVersion:
    return registry.put(as_they_are(model), name="plain", switch=switch)


def start(data: hw.Dataset, version: ModelVersion, over: Callable[[], bool] = lambda: False) -> Running:
    record = JobRecord("a", "quantise", "colours", data.version, version.digest, "me", "now", bound=0.95)
    return Running(record, lambda record: None, over)


def kiln(data: hw.Dataset, registry: Registry, version: ModelVersion) -> Kiln:
    return Kiln("colours", data.index, registry, lambda album: _extraction(data, version, album))


def test_int8_is_kept_as_a_child_and_put_in_force(data: hw.Dataset, registry: Registry) -> None:
    version = put(registry, fitted())
    seen: list[JobRecord] = []
    done = quantise_here(data, registry, QuantiseWish("plain", "colours"), watch=seen.append)
    assert (done.state, done.total, done.cursor) == ("done", 181, 181)
    assert [record.cursor for record in seen][:2] == [0, 64]
    found = registry.version(done.result)
    assert (found.parent, found.name, registry.current("plain")) == (version.digest, "plain", found)
    assert precision_of(registry.get("plain")) == "int8"
    assert found.made == {
        "by": "quantise",
        "agreement": done.figures["agreement"],
        "correlation": done.figures["correlation"],
        "images": 116,
        "bound": 0.95,
        "data": data.version,
    }
    assert done.figures["agreement"] >= 0.95
    assert done.figures["speedup"] > 0
    assert done.said.startswith("int8: int8 gives the label of fp32 for ")
    assert done.said.endswith("of 116 images, bound 95.0%"), "64 of 180 calibrated, one could not be read"
    assert registry.rollback("plain") == version


@pytest.mark.parametrize(
    ("hold", "switch"), [(True, True), (False, False)], ids=["to be held", "not in force itself"]
)
def test_what_is_in_force_stays(data: hw.Dataset, registry: Registry, hold: bool, switch: bool) -> None:
    version = put(registry, fitted(), switch=switch)
    done = quantise_here(data, registry, QuantiseWish(version.digest, hold=hold))
    assert registry.version(done.result).parent == version.digest
    assert registry.in_force() == ({"plain": version.digest} if switch else {})


def test_fp32_stays_where_labels_would_not(data: hw.Dataset, registry: Registry) -> None:
    version = put(registry, brittle())
    done = quantise_here(data, registry, QuantiseWish("plain"))
    assert (done.state, done.result) == ("done", "")
    assert done.figures["agreement"] < 0.95
    assert done.said.startswith("fp32: int8 gives the label of fp32 for ")
    assert registry.versions() == [version]
    assert quantise_here(data, registry, QuantiseWish("plain", bound=0.0)).result, "the user's choice"


def test_fp32_stays_where_there_are_too_few_images(registry: Registry, tmp_path: Path) -> None:
    put(registry, fitted())
    few = hw.open(write_colours(tmp_path / "few", 5, size=SIZE))
    done = quantise_here(few, registry, QuantiseWish("plain"))
    assert (done.result, done.figures) == ("", {})
    assert done.said == "fp32: 7 images are left to compare on, at least 32 are needed"


def test_all_of_the_data_calibrates_and_no_more_is_read_than_used(registry: Registry, tmp_path: Path) -> None:
    """Classes lie one after the other, and only the first images calibrate."""
    version = put(registry, fitted())
    many = hw.open(write_colours(tmp_path / "many", 120, size=SIZE))
    job = start(many, version)
    images = module._look_at(kiln(many, registry, version), job)
    assert (len(images), job.record.total, job.record.cursor) == (MOST_IMAGES,) * 3
    calibrating, held_out = divide(images)
    for part in (calibrating, held_out):
        assert {int(image.mean(axis=(0, 1)).argmax()) for image in part} == {0, 1, 2}, "a colour is missing"


def test_int8_is_not_made_of_int8(data: hw.Dataset, registry: Registry) -> None:
    put(registry, fitted())
    quantise_here(data, registry, QuantiseWish("plain"))
    with pytest.raises(WrongUse, match="int8 already; quantise the version that it was made of"):
        quantise_here(data, registry, QuantiseWish("plain"))


def test_a_job_that_is_stopped_keeps_nothing_and_one_that_is_killed_makes_the_same_again(
    data: hw.Dataset, registry: Registry
) -> None:
    version = put(registry, fitted())
    looks = iter([False])
    quantise(kiln(data, registry, version), start(data, version, lambda: next(looks, True)))
    assert registry.versions() == [version]
    for _ in range(2):  # the second as after a kill between the version and the record that tells of it
        job = start(data, version)
        quantise(kiln(data, registry, version), job)
        assert registry.current("plain").digest == job.record.result
    assert len(registry.versions()) == 2


def test_other_data_than_the_job_began_with_is_refused(data: hw.Dataset, registry: Registry) -> None:
    version = put(registry, fitted())
    job = start(data, version)
    job.record = msgspec.structs.replace(job.record, version="another")
    with pytest.raises(DatasetStale, match="start another job"):
        quantise(kiln(data, registry, version), job)
