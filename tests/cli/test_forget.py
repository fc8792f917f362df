"""`headwater forget`: what it takes, what it says, and what it refuses."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.cli import run
from headwater.data.forgetting import Audit
from headwater.data.index import sample_ids
from headwater.models.registry import Registry
from headwater.store.labels import open_labels
from headwater.tune.here import relabel_here
from headwater.tune.relabel import Wish
from relabelling import small_model, write_photos

COUNT = 12
KEY = "00007.jpg"
ID = int(sample_ids([KEY])[0])
Call = Callable[..., dict[str, Any]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Photos with labels of a model that was trained elsewhere."""
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HEADWATER_FORGOTTEN", str(tmp_path / "forgotten"))
    monkeypatch.setenv("HEADWATER_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("HEADWATER_LABELS", str(tmp_path / "labels.db"))
    photos, registry = write_photos(tmp_path / "photos", COUNT), Registry(tmp_path / "models")
    registry.put(small_model(), name="small", switch=True)
    with closing(hw.open(photos)) as data, closing(open_labels(tmp_path / "labels.db")) as labels:
        relabel_here(data, registry, labels, Wish(dataset="photos", model="small"))
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["forget", *map(str, words), "--json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_by_id_with_a_scan_of_all_that_is_kept(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = [place / name for name in ("cache", "models", "labels.db", "forgotten")]
    scans = [word for folder in kept for word in ("--scan", folder)]
    said = call(capsys, place / "photos", ID, *scans)
    assert (said["samples"], said["resumed"], said["traces"]) == (1, False, [])
    (there,) = said["places"].values()
    assert (there["dataset"], there["samples"], there["found"]["index"]) == ("photos", COUNT - 1, 1)
    assert there["found"]["labels"] > 0
    assert (said["models"], said["sealed"], said["left"]) == ({}, [], {})
    assert list(said["untold"].values()) == ["small"]
    assert set(said["seconds"]) >= {
        "record",
        "replay",
        "bring",
        "forget",
        "relabel",
        "seal",
        "caches",
        "audit",
    }
    with closing(hw.open(place / "photos")) as data:
        assert len(data) == COUNT - 1
    assert Registry(place / "models").current("small"), "it was trained on other data"


def test_by_path_and_with_its_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = call(capsys, place / "photos", "--path", KEY, "--delete-files")
    (there,) = said["places"].values()
    assert there["found"]["files"] == 1
    assert not (place / "photos" / KEY).exists()


def test_a_trace_is_told_and_is_a_failure(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "mine").mkdir()
    (place / "mine" / "notes.txt").write_text(f"the photo {KEY} is {ID}")
    said = call(capsys, place / "photos", ID, "--scan", place / "mine", code=1)
    assert {trace["mark"] for trace in said["traces"]} == {f"id, decimal of {ID}", f"path {KEY}"}


def test_a_scan_of_nothing_assures_nobody(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = call(capsys, place / "photos", ID, "--scan", place / "typo", code=2)
    assert "typo: there is no such file or folder; nothing was forgotten" in said["error"]["message"]
    with closing(hw.open(place / "photos")) as data:
        assert len(data) == COUNT


def test_a_scan_when_it_is_forgotten_already_looks_for_paths_that_are_named(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "mine").mkdir()
    (place / "mine" / "notes.txt").write_text(f"the photo {KEY}")
    said = call(capsys, place / "photos", ID)
    assert said["sought"] == {"ids": 1, "paths": 1, "contents": 1}
    said = call(capsys, place / "photos", ID, "--scan", place / "mine")
    assert said["sought"] == {"ids": 1, "paths": 0, "contents": 0}
    assert not said["traces"]
    assert run(["forget", str(place / "photos"), str(ID), "--yes", "--scan", str(place / "mine")]) == 0
    told = "the scan could not look for the paths of 1 and the contents of 1 of 1 samples"
    assert told in capsys.readouterr().err
    said = call(capsys, place / "photos", "--path", KEY, "--scan", place / "mine", code=1)
    assert said["sought"] == {"ids": 1, "paths": 1, "contents": 0}
    assert [trace["mark"] for trace in said["traces"]] == [f"path {KEY}"]


def test_a_file_can_be_deleted_later_by_its_path(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, place / "photos", ID)
    said = call(capsys, place / "photos", "--path", KEY, "--delete-files")
    assert next(iter(said["places"].values()))["found"]["files"] == 1
    assert not (place / "photos" / KEY).exists()


def test_a_dry_run_changes_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = call(capsys, place / "photos", ID, "--dry-run")
    assert said["samples"] == [{"id": ID, "key": KEY}]
    assert next(iter(said["places"].values()))["found"]["index"] == 1
    with closing(hw.open(place / "photos")) as data:
        assert len(data) == COUNT
    assert not list(Audit(place / "forgotten").lines())
    assert run(["forget", str(place / "photos"), str(ID), "--dry-run"]) == 0
    assert "what is there" in capsys.readouterr().out


def test_it_asks_first(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in ("n\n", ""):  # nobody is there
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert run(["forget", str(place / "photos"), str(ID)]) == 1
        assert "nothing was forgotten" in capsys.readouterr().err
    with closing(hw.open(place / "photos")) as data:
        assert len(data) == COUNT
    assert run(["forget", str(place / "photos"), str(ID), "--yes"]) == 0
    printed = capsys.readouterr()
    assert "what is gone" in printed.out
    assert "1 samples forgotten in" in printed.err
    assert "no model was made again" in printed.err
    digest = Registry(place / "models").current("small").digest[:12]
    assert f"cannot tell whether small was trained on them: {digest} says not" in printed.err


def test_a_model_that_stays_is_named_with_what_to_do(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(hw.open(place / "photos")) as data:
        made = {"by": "early ticket", "data": data.version}
    Registry(place / "models").put(small_model(1), name="slim", made=made, switch=True)
    assert run(["forget", str(place / "photos"), str(ID), "--yes"]) == 4
    assert "in force as slim was trained on these samples" in capsys.readouterr().err
    for word in ("--dry-run", "--yes"):
        assert run(["forget", str(place / "photos"), str(ID), "--no-model", word]) == 0
        said = capsys.readouterr().err
        assert "slim was trained on them, or may have been, and stays in force: it has no head" in said
        assert "train it again on what is left, and put that in force" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["photos"], "name samples, by id or --path, or say --resume"),
        (["photos", "7", "--resume"], "name samples, by id or --path, or say --resume"),
        (["photos", "--resume"], "nothing was interrupted"),
        (["7"], "first the dataset or its stores, then the ids"),
        (["7", "photos"], "first the dataset or its stores, then the ids"),
        (["photos", "others", "7"], "local data alone"),
        (["photos", "photos", "7"], "stands there twice"),
        (["photos", "7"], "has no sample with id 7"),
        (["photos", "9999999999999999999"], "an id has 63 bits"),
        (["photos", "--path", "none.jpg"], "has no sample with id"),
        (["grpc://127.0.0.1:1/photos", "7", "--db", "x.db"], "--db and --dataset are for local data"),
    ],
)
def test_wrong_use(
    words: list[str],
    told: str,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    assert told in call(capsys, *words, code=2)["error"]["message"]


def test_a_tar_is_forgotten_and_not_deleted(
    photo_tars: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(photo_tars, place / "tars")
    with closing(hw.open(place / "tars")) as data:
        id, count = int(data.ids[3]), len(data)
    said = call(capsys, place / "tars", id, "--delete-files", code=2)
    assert "a member of a tar, which is not deleted in place" in said["error"]["message"]
    assert next(iter(call(capsys, place / "tars", id)["places"].values()))["samples"] == count - 1


def test_a_store_that_is_away(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = call(capsys, "grpc://127.0.0.1:1/photos", ID, code=3)
    assert said["error"]["kind"] == "Unreachable"
