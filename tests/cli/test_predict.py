"""`headwater predict`: here and at a store, in tables and JSON, kept and sealed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.cli import run
from headwater.models.registry import Registry
from headwater.store.server.daemon import Daemon
from pages import DOCS, run_page
from relabelling import CLASSES, nudged, small_model, write_photos
from stores import running_daemon

COUNT = 12
Call = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("predict")
    write_photos(made / "photos", COUNT)
    (made / "text.jpg").write_text("not an image")
    Registry(made / "state" / "models").put(small_model(), name="small", switch=True)
    return made


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[Daemon]:
    settings = {"state": folder / "state", "http": "127.0.0.1:0"}
    with running_daemon({"photos": folder / "photos"}, **settings) as made:
        yield made


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `headwater predict WORDS... --json` and parse; `code` is what it must exit with."""

    def found(*words: object, code: int = 0) -> dict[str, Any]:
        assert run(["predict", *map(str, words), "--json"]) == code
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return found


def files(folder: Path) -> list[Path]:
    return sorted((folder / "photos").iterdir())


def test_a_store_says_what_this_machine_says(daemon: Daemon, folder: Path, call: Call) -> None:
    here = call(*files(folder), "--registry", folder / "state" / "models", "--top", 2)
    there = call(*files(folder), "--at", daemon.serving.address, "--top", 2)
    assert here["ok"]
    assert there["ok"]
    assert [row["image"] for row in here["images"]] == list(map(str, files(folder)))
    for key in ("image", "label", "model", "version", "id", "key", "error"):
        assert [row[key] for row in here["images"]] == [row[key] for row in there["images"]]
    assert [row["score"] for row in here["images"]] == pytest.approx(
        [row["score"] for row in there["images"]], rel=1e-3
    )
    assert all(row["label"] in CLASSES and len(row["top"]) == 2 for row in here["images"])
    by_http = call(files(folder)[0], "--at", daemon.serving.http)
    assert by_http["images"][0]["label"] == here["images"][0]["label"]


def test_a_table_for_people(
    daemon: Daemon, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    words = [str(files(folder)[0]), str(folder / "text.jpg"), "--at", daemon.serving.address]
    assert run(["predict", *words, "--top", "3", "--keep"]) == 1
    shown = capsys.readouterr()
    (line,) = [line for line in shown.out.splitlines() if "00000.jpg" in line]
    assert "class" in line
    assert line.count(", ") == 1, "two others beside the best"
    assert "text.jpg" not in shown.out
    assert "text.jpg: file looks like text" in shown.err
    assert "id" in shown.out
    assert run(["predict", str(files(folder)[0]), "--registry", str(folder / "state" / "models")]) == 0
    assert "others" not in capsys.readouterr().out


def test_kept_and_sealed(
    daemon: Daemon, folder: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"{daemon.serving.address}/photos"
    kept = call(*files(folder), "--at", address, "--keep", "--dataset", "photos")
    ids = {row["id"] for row in kept["images"]}
    assert len(ids) == COUNT
    sealed = call("--seal", "photos", "--at", daemon.serving.address)
    assert (sealed["dataset"], sealed["samples"]) == ("photos-inbox", COUNT)
    data = hw.open(f"{daemon.serving.address}/photos-inbox")
    assert (set(data.ids.tolist()), data.version) == (ids, sealed["version"])
    data.close()
    assert run(["predict", "--seal", "photos", "--at", daemon.serving.address]) == 0
    assert f"photos-inbox: {COUNT} images" in capsys.readouterr().out
    assert (
        call("--seal", "scans", "--at", daemon.serving.address, code=1)["error"]["kind"] == "DatasetNotFound"
    )


def test_nothing_to_seal(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = shutil.copytree(folder / "state" / "models", tmp_path / "state" / "models").parent
    with running_daemon({"photos": folder / "photos"}, state=state) as daemon:
        assert run(["predict", "--seal", "photos", "--at", daemon.serving.address]) == 0
    assert capsys.readouterr().out == "nothing was kept of photos\n"


def test_what_is_wrong_with_one_image_is_told_beside_the_others(folder: Path, call: Call) -> None:
    words = [files(folder)[0], folder / "text.jpg", folder / "none.jpg", folder]
    found = call(*words, "--registry", folder / "state" / "models", code=1)
    assert not found["ok"]
    assert [row["error"] and row["error"]["kind"] for row in found["images"]] == [
        None,
        "SampleCorrupt",
        "HeadwaterError",
        "HeadwaterError",
    ]
    assert "No such file" in found["images"][2]["error"]["message"]


def test_the_model_is_chosen_by_name(folder: Path, call: Call, tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    first = registry.put(small_model(), name="small", switch=True)
    second = registry.put(nudged(small_model(), 3.0), name="other", switch=True)
    image = files(folder)[0]
    assert call(image, "--registry", tmp_path, "--model", "small")["images"][0]["version"] == first.digest
    assert call(image, "--registry", tmp_path, "--model", "other")["images"][0]["version"] == second.digest
    error = call(image, "--registry", tmp_path, code=1)["error"]
    assert (error["kind"], "name one of" in error["message"]) == ("ModelNotFound", True)
    assert call(image, "--registry", tmp_path / "empty", code=1)["error"]["kind"] == "ModelNotFound"


WRONG = {
    "both places": ["{image}", "--at", "grpc://a", "--registry", "x"],
    "kept here": ["{image}", "--keep"],
    "a dataset here": ["{image}", "--dataset", "photos"],
    "sealed here": ["--seal", "photos"],
    "no image": [],
    "images and a seal": ["{image}", "--seal", "photos", "--at", "grpc://a"],
    "no class": ["{image}", "--top", "0"],
    "no store": ["{image}", "--at", "photos/"],
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_use(folder: Path, call: Call, what: str) -> None:
    words = [word.format(image=files(folder)[0]) for word in WRONG[what]]
    error = call(*words, code=2)["error"]
    assert (error["kind"], error["exit_code"]) == ("WrongUse", 2)


def test_the_page_runs(daemon: Daemon, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "how-to" / "predict.md").read_text()
    place = str(daemon.serving.http).removeprefix("http://")
    copy = tmp_path / "page.md"
    copy.write_text(page.replace("https://store-a:8080", f"http://{place}"))
    shutil.copy(files(folder)[0], tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    names = run_page(copy, {"token": "none is needed"})
    assert names["answer"]["label"] in CLASSES
