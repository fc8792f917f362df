"""`headwater models sync` and stores that were away: real processes, killed and started again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from graphs import make_model, make_tensors, new_head
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from stores import StoreProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BASE = make_model(tensors=make_tensors(classes=40, features=64))
LATE_SECONDS = 45.0
"""Within which a store that is back must have what it missed, while somebody waits for it."""


@pytest.fixture
def tuner(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "tuner")


@pytest.fixture
def pair(photo_folder: Path, tmp_path: Path) -> Iterator[dict[str, StoreProcess]]:
    with (
        StoreProcess({"photos": photo_folder}, state=tmp_path / "a") as a,
        StoreProcess({"photos": photo_folder}, state=tmp_path / "b") as b,
    ):
        yield {"a": a, "b": b}


def put(tuner: Registry, seed: int, name: str = "birds") -> ModelVersion:
    return tuner.put(new_head(BASE, seed), name=name, switch=True)


class Sync:
    """The command in a process of its own."""

    def __init__(self, tuner: Registry, stores: dict[str, StoreProcess], *words: object) -> None:
        self._names = {store.address: name for name, store in stores.items()}
        flags = ["--registry", str(tuner.folder), "--json", *map(str, words)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headwater.cli", "models", "sync", *self._names, *flags],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    @property
    def waits(self) -> bool:
        return self._process.poll() is None

    def end(self, seconds: float = 120.0) -> tuple[int, dict[tuple[str, str], dict[str, Any]]]:
        """The exit code, and what became of each store and model."""
        out, _ = self._process.communicate(timeout=seconds)
        rows = json.loads(out)["deliveries"]
        return self._process.returncode, {(self._names[row["store"]], row["model"]): row for row in rows}


@contextmanager
def syncing(tuner: Registry, stores: dict[str, StoreProcess], *words: object) -> Iterator[Sync]:
    command = Sync(tuner, stores, *words)
    try:
        yield command
    finally:
        command._process.kill()
        command._process.wait()


def sync(tuner: Registry, stores: dict[str, StoreProcess], *words: object) -> tuple[int, dict[Any, Any]]:
    with syncing(tuner, stores, *words) as command:
        return command.end()


def in_force(folder: Path, name: str = "birds") -> str | None:
    return Registry(folder / "models").in_force().get(name)


def wait_until(reached: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "it did not come so far"
        time.sleep(0.05)


@pytest.mark.parametrize("away_seconds", [13.0, pytest.param(200.0, marks=pytest.mark.soak)])
def test_wait_covers_a_store_that_is_away_for_long_and_keeps_no_other_waiting(
    tuner: Registry, pair: dict[str, StoreProcess], tmp_path: Path, away_seconds: float
) -> None:
    """Longer than the deadline of one question, so that it was found to be away more than once."""
    put(tuner, 1)
    put(tuner, 2, "cats")
    assert sync(tuner, pair)[0] == 0
    pair["b"].kill()
    birds, cats = put(tuner, 3), put(tuner, 4, "cats")
    with syncing(tuner, pair, "--wait", away_seconds + 60) as command:
        begun = time.monotonic()
        wait_until(lambda: in_force(tmp_path / "a") == birds.digest, 60)
        wait_until(lambda: in_force(tmp_path / "a", "cats") == cats.digest, 30)
        assert in_force(tmp_path / "b") != birds.digest
        time.sleep(max(0.0, away_seconds - (time.monotonic() - begun)))
        assert command.waits
        pair["b"].restart()
        code, rows = command.end(LATE_SECONDS)
    assert code == 0
    assert {key: (row["kind"], row["error"]) for key, row in rows.items()} == dict.fromkeys(
        [("a", "birds"), ("b", "birds"), ("a", "cats"), ("b", "cats")], ("delta", None)
    )
    assert in_force(tmp_path / "b") == birds.digest
    assert in_force(tmp_path / "b", "cats") == cats.digest
    assert rows["b", "birds"]["seconds"] >= away_seconds - 1
    assert rows["a", "birds"]["seconds"] < away_seconds


def test_a_store_that_comes_back_with_an_older_version_gets_what_leads_from_there(
    tuner: Registry, pair: dict[str, StoreProcess], tmp_path: Path
) -> None:
    """From a backup of its state; the command plans by what the store holds when it answers again."""
    first = put(tuner, 1)
    assert sync(tuner, pair)[0] == 0
    shutil.copytree(tmp_path / "b", tmp_path / "backup")
    second = put(tuner, 2)
    assert sync(tuner, pair)[0] == 0
    pair["b"].kill()
    shutil.rmtree(tmp_path / "b")
    shutil.copytree(tmp_path / "backup", tmp_path / "b")
    third = put(tuner, 3)
    with syncing(tuner, pair, "--wait", 100) as command:
        wait_until(lambda: in_force(tmp_path / "a") == third.digest, 60)
        assert in_force(tmp_path / "b") == first.digest
        pair["b"].restart()
        code, rows = command.end(60)
    assert (code, rows["b", "birds"]["kind"], rows["b", "birds"]["error"]) == (0, "delta", None)
    registry = Registry(tmp_path / "b" / "models")
    assert (in_force(tmp_path / "b"), registry.history("birds")) == (third.digest, (first.digest,))
    assert second.digest not in registry, "one delta, however many were missed"


def test_who_is_not_waited_for_catches_up_when_the_command_runs_again(
    tuner: Registry, pair: dict[str, StoreProcess], tmp_path: Path
) -> None:
    """Nothing else does it: not a store that starts, and not one that went back by itself."""
    first = put(tuner, 1)
    assert sync(tuner, pair)[0] == 0
    pair["b"].kill()
    shutil.copytree(tmp_path / "b", tmp_path / "backup")
    second = put(tuner, 2)
    code, rows = sync(tuner, pair)
    assert (code, rows["a", "birds"]["error"], rows["b", "birds"]["away"]) == (3, None, True)
    pair["b"].restart()
    assert in_force(tmp_path / "b") == first.digest
    assert sync(tuner, pair)[0] == 0
    assert in_force(tmp_path / "b") == second.digest
    pair["b"].kill()
    shutil.rmtree(tmp_path / "b")
    shutil.copytree(tmp_path / "backup", tmp_path / "b")
    pair["b"].restart()
    assert in_force(tmp_path / "b") == first.digest
    code, rows = sync(tuner, pair)
    assert (code, rows["b", "birds"]["kind"]) == (0, "delta")
    assert in_force(tmp_path / "b") == second.digest
