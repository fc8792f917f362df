"""`headwater relabel`: at stores and in this process, to the end, without waiting, and interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.cli import run
from headwater.models.registry import Registry
from headwater.store.server.daemon import Daemon
from pages import DOCS, run_page
from relabelling import nudged, small_model, write_photos
from stores import running_daemon

COUNT = 120
Call = Callable[..., dict[str, Any]]

SLOW_SECONDS = 130.0
"""For a store of a hundredth of a core, on a machine that is busy besides."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("relabel")
    write_photos(made / "photos", COUNT, broken=1)
    for state in ("state", "slow"):
        Registry(made / state / "models").put(small_model(), name="small", switch=True)
    return made


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[Daemon]:
    with running_daemon({"photos": folder / "photos"}, state=folder / "state") as made:
        yield made


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `headwater relabel WORDS... --json` and parse; `code` is what it must exit with."""

    def found(*words: object, code: int = 0) -> dict[str, Any]:
        assert run(["relabel", *map(str, words), "--json"]) == code
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return found


def test_at_a_store_and_again(
    daemon: Daemon,
    folder: Path,
    call: Call,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = call(daemon.serving.address)
    (store,) = first["stores"]
    assert first["ok"]
    assert (store["state"], store["dataset"], store["error"]) == ("done", "photos", None)
    assert store["counts"] == {
        "labelled": COUNT,
        "unchanged": 0,
        "changed": 0,
        "skipped": 0,
        "failed": 1,
        "protected": 0,
    }
    assert store["failures"][0]["key"] == "broken-0.jpg"
    assert 0 < store["bytes_moved"] < 20_000
    registry = Registry(folder / "state" / "models")
    version = registry.put(nudged(small_model(), 0.02), name="small", switch=True)
    monkeypatch.setenv("COLUMNS", "250")
    assert run(["relabel", f"{daemon.serving.address}/photos", "--model", "small"]) == 0
    shown = capsys.readouterr()
    for word in ("bytes across the link", "skipped", version.digest[:12], "done"):
        assert word in shown.out
    assert "broken-0.jpg: no image could be made of it" in shown.err


def test_errors_are_told_per_store(daemon: Daemon, call: Call) -> None:
    away = "grpc://127.0.0.1:1"
    found = call(daemon.serving.address, away, "--dataset", "photos", code=3)
    good, bad = found["stores"]
    assert not found["ok"]
    assert (good["state"], good["error"]) == ("done", None)
    assert bad["error"]["kind"] == "Unreachable"
    unknown = call(daemon.serving.address, "--model", "strange", code=1)
    assert unknown["stores"][0]["error"]["kind"] == "ModelNotFound"


@pytest.mark.parametrize(
    "words",
    [
        ("grpc://127.0.0.1:1", "photos/"),
        ("photos/", "others/"),
        ("grpc://127.0.0.1:1", "--registry", "x"),
        ("grpc://127.0.0.1:1", "grpc://127.0.0.1:1"),
    ],
)
def test_words_that_do_not_go_together(call: Call, words: tuple[str, ...]) -> None:
    assert call(*words, code=2)["error"]["kind"] == "WrongUse"


def test_local_data(folder: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    registry = Registry(tmp_path / "models")
    registry.put(small_model(), name="small", switch=True)
    words = (folder / "photos", "--registry", registry.folder, "--db", tmp_path / "labels.db")
    (done,) = call(*words)["stores"]
    assert (done["state"], done["dataset"], done["counts"]["labelled"]) == ("done", "photos", COUNT)
    assert done["bytes_moved"] == 0
    registry.put(nudged(small_model(), 0.02), name="small", switch=True)
    (again,) = call(*words)["stores"]
    assert again["counts"]["skipped"] > COUNT / 2
    (named,) = call(*words, "--dataset", "mine", "--feature-bytes", "0")["stores"]
    assert (named["dataset"], named["counts"]["labelled"]) == ("mine", COUNT)
    over = call(*words, "--dataset", "mine", "--opinions", "--over-imports")["stores"][0]
    assert sum(over["counts"].values()) == 1, "all is up to date but the broken one"


def test_a_store_that_is_away_keeps_no_other_from_stopping(daemon: Daemon, call: Call) -> None:
    found = call("grpc://127.0.0.1:1", daemon.serving.address, "--stop", code=3)
    (away,) = found["stores"]
    assert not found["ok"]
    assert (away["store"], away["error"]["kind"]) == ("grpc://127.0.0.1:1", "Unreachable")
    assert call(daemon.serving.address, "--stop") == {"ok": True, "stores": []}


def start_waiting(address: str, jobs: Path, *words: str) -> subprocess.Popen[bytes]:
    """A process that waits for a job which has begun."""
    before = set(jobs.glob("*.json"))
    waiting = subprocess.Popen(
        [sys.executable, "-m", "headwater.cli", "relabel", address, *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    end = time.monotonic() + 60
    while not set(jobs.glob("*.json")) - before:
        assert time.monotonic() < end
        time.sleep(0.1)
    return waiting


@pytest.mark.slow
def test_an_interrupted_wait_leaves_the_job_running(folder: Path, call: Call) -> None:
    with running_daemon({"photos": folder / "photos"}, state=folder / "slow", cores=0.01) as slow:
        address = slow.serving.address
        waiting = start_waiting(address, folder / "slow" / "jobs")
        time.sleep(0.5)
        waiting.send_signal(signal.SIGINT)
        _, told = waiting.communicate(timeout=SLOW_SECONDS)
        assert waiting.returncode == 130
        assert f"the jobs go on; `headwater relabel {address}` looks again" in told.decode()
        (seen,) = call(address, "--no-wait")["stores"]
        assert seen["state"] in ("running", "waiting")
        stopped = call(address, "--stop")
        (ended,) = stopped["stores"]
        assert (stopped["ok"], ended["job"], ended["state"]) == (True, seen["job"], "stopped")
        assert call(address, "--stop")["stores"] == []
        other = start_waiting(address, folder / "slow" / "jobs", "--json")
        assert call(address, "--stop")["ok"]
        told, _ = other.communicate(timeout=SLOW_SECONDS)
        assert other.returncode == 1, "whose job somebody else has stopped"
        assert not json.loads(told)["ok"]


def test_the_page_runs(daemon: Daemon, folder: Path, tmp_path: Path) -> None:
    Registry(folder / "state" / "models").put(small_model(), name="birds", switch=True)
    page = tmp_path / "page.md"
    text = (DOCS / "how-to" / "relabel.md").read_text()
    address = daemon.serving.address
    page.write_text(text.replace("grpc://127.0.0.1:7077", address))
    found = run_page(page, {"token": None})["found"]
    assert found[0].error is None
    assert sum(found[0].job.counts.values()) >= 1
