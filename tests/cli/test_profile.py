from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import cli
from headwater.cli.presets import PRESETS
from headwater.measure.logbook import Logbook, newest
from stores import running_daemon

SAMPLES = 1024


@pytest.fixture(scope="module")
def store(photo_folder: Path) -> Iterator[str]:
    with running_daemon({"photos": photo_folder}) as daemon:
        yield f"{daemon.serving.address}/photos"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "cache"


def profile(uri: str, *words: object) -> int:
    sizes = ("--samples", SAMPLES, "--batch-size", 16, "--transform", "cifar")
    return cli.run(["profile", uri, *map(str, (*sizes, *words))])


def test_it_measures_every_resource_and_way(
    store: str, photo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile(store, "--json", "--save", tmp_path / "run.json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["uri"] == store
    assert found["dataset"] == hw.open(photo_folder).version
    assert sum(way["done"] for way in found["ways"]) >= SAMPLES
    assert all(way["asked"] for way in found["ways"])
    saved, kept = Logbook.load(tmp_path / "run.json"), newest(uri=store)
    assert kept is not None
    assert saved.key == kept.key
    assert saved.profile == kept.profile != {}
    assert all(stretch.rates.link > 0 for stretch in saved.stretches[-1:])
    measured = {"trainer", "trainer CPU", "link", "disk", "store CPU"}
    assert set(found["verdict"]["resources"]) == measured


def test_its_logbook_can_be_planned_with_and_explained(
    store: str, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile(store, "--trainer-rate", 20_000) == 0
    out = capsys.readouterr().out
    assert "The four resources" in out
    assert "disk" in out
    # the same data in another place
    words = ["plan", str(photo_folder), "--transform", "cifar", "--link", "1Mbit", "--store-cores", "4"]
    assert cli.run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["after"]["seconds"] <= found["before"]["seconds"]
    assert found["pipeline"] == str(PRESETS["cifar"]().samplewise)
    assert cli.run(["explain", store, "--sample", str(hw.open(photo_folder).ids[0])]) == 0
    assert "chosen" in capsys.readouterr().out


def test_data_without_a_store_is_wrong_use(photo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile(str(photo_folder)) == 2
    assert "there is no store" in capsys.readouterr().err


def test_an_unknown_transform_is_wrong_use(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile(store, "--transform", "nope") == 2
    assert "known: imagenet" in capsys.readouterr().err


def write_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, under a name that no other test has imported."""
    name = f"training_{folder.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text(
        "import time\nrate = 3\ndef step(batch): time.sleep(0.002 * len(batch))\n"
    )
    monkeypatch.chdir(folder)
    return name


def test_the_users_own_step_is_measured(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = write_module(tmp_path, monkeypatch)
    assert profile(store, "--step", f"{module}:step", "--samples", 100, "--json") == 0
    found = json.loads(capsys.readouterr().out)["verdict"]
    assert found["bottleneck"] == "trainer"
    assert found["resources"]["trainer"]["rate"] == pytest.approx(500, rel=0.3)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ("nowhere_at_all:step", "there is no module 'nowhere_at_all'"),
        ("MODULE:absent", "has no 'absent'"),
        ("MODULE:rate", "is of type int and cannot be called"),
        ("MODULE", "write MODULE:FUNCTION"),
    ],
)
def test_a_step_that_is_none_is_wrong_use(
    step: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = write_module(tmp_path, monkeypatch)
    assert profile("grpc://127.0.0.1:1/photos", "--step", step.replace("MODULE", module)) == 2
    assert text in capsys.readouterr().err.replace(module, "MODULE")


def test_a_step_and_a_rate_are_one_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert profile("grpc://127.0.0.1:1/photos", "--step", "a:b", "--trainer-rate", 5) == 2
    assert "leave one out" in capsys.readouterr().err
