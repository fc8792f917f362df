"""Killed at every step of keeping and sealing: what was acknowledged is there, and nothing is there twice."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from datasets import make_photo
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion
from headwater.store.labels import open_labels
from headwater.store.server.inbox import Kept
from headwater.store.server.keeping import Keeper, Opinion
from headwater.store.server.shard import Arrival
from headwater.store.server.state import State
from labelled import Kind
from relabelling import CLASSES, small_model

RNG = np.random.default_rng(4)
IMAGES = [Arrival(make_photo(RNG, 16, 16), "jpg") for _ in range(6)]
BATCHES = [IMAGES[:2], IMAGES[1:4], IMAGES[4:]]
STEPS = ("pwrite", "fsync", "rename", "ftruncate")


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> ModelVersion:
    return Registry(tmp_path_factory.mktemp("models")).put(small_model(), name="small")


def label_of(arrival: Arrival) -> int:
    return int(arrival.digest, 16) % len(CLASSES)


def keep(keeper: Keeper, batch: list[Arrival], version: ModelVersion) -> list[Kept]:
    labels = np.array([label_of(arrival) for arrival in batch], np.int32)
    numbers = np.ones(len(batch), np.float32)
    return keeper.keep("photos", batch, Opinion(version, labels, numbers, numbers))


@dataclass(frozen=True)
class Site:
    """A state's folder, the URL of its labels if they are elsewhere, and the version that labels."""

    folder: Path
    labels: str | None
    version: ModelVersion


def work(site: Site, told: Callable[[Any], object], *, begin: int = 0) -> None:
    """Keep images in three goes, or from one of them on, and seal after each but the first."""
    with State(site.folder, labels=site.labels) as state, closing(Keeper(state, ["photos"])) as keeper:
        for number, batch in enumerate(BATCHES[begin:], begin):
            kept = keep(keeper, batch, site.version)
            told([[one.id, arrival.digest] for one, arrival in zip(kept, batch, strict=True)])
            if number:
                keeper.seal("photos")
        keeper.seal("photos")


@contextmanager
def trapped(at: int) -> Iterator[list[int]]:
    """Every write, sync and rename counts, and every write of labels, before and after; the `at`-th kills.

    A write that kills has written half.
    """
    passed = [0]
    patch = pytest.MonkeyPatch()

    def step() -> bool:
        passed[0] += 1
        return passed[0] == at

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def before(name: str) -> None:
        original: Callable[..., Any] = getattr(os, name)

        def run(*arguments: Any, **named: Any) -> Any:
            if step():
                if name == "pwrite":
                    file, data, offset = arguments
                    original(file, data[: len(data) // 2], offset)
                kill()
            return original(*arguments, **named)

        patch.setattr(os, name, run)

    for name in STEPS:
        before(name)
    write = Keeper._write_part

    def write_labels(*arguments: Any) -> None:
        if step():
            kill()
        write(*arguments)
        if step():
            kill()

    patch.setattr(Keeper, "_write_part", write_labels)
    try:
        yield passed
    finally:
        patch.undo()


def run_and_die(site: Site, at: int) -> tuple[bool, list[Any]]:
    """Whether it was killed, and what it had told until then."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            with trapped(at):
                work(site, lambda fact: os.write(writing, json.dumps(fact).encode() + b"\n"))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        told = [json.loads(line) for line in file]
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status), told


def rows_of(site: Site) -> dict[int, str]:
    with closing(open_labels(site.labels or site.folder / "labels.db")) as labels:
        names = labels.classes("photos-inbox").names
        return {
            int(id): names[label]
            for rows in labels.scan("photos-inbox")
            for id, label in zip(rows.samples, rows.labels, strict=True)
        }


def sealed(folder: Path) -> dict[int, bytes]:
    data = hw.open(folder / "inbox" / "photos")
    files = data.store.read(np.arange(len(data)))
    found = {int(id): bytes(file) for id, file in zip(data.ids, files, strict=True)}
    data.close()
    return found


def check(site: Site, told: list[Any]) -> None:
    """What was not acknowledged is sent again; then all is there, once, as it was acknowledged."""
    work(site, told.append, begin=len(told))
    after = {id: digest for batch in told for id, digest in batch}
    there = sealed(site.folder)
    assert {id: Arrival(file, "").digest for id, file in there.items()} == after
    assert sorted(there.values()) == sorted(arrival.data for arrival in IMAGES), "each is there once"
    named = {arrival.digest: CLASSES[label_of(arrival)] for arrival in IMAGES}
    assert rows_of(site) == {id: named[digest] for id, digest in after.items()}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state whose label database has its tables: making them takes longest."""
    folder = tmp_path_factory.mktemp("template") / "state"
    with State(folder) as state:
        assert state.labels.datasets() == []
    return folder


@pytest.mark.parametrize("most", [10, pytest.param(1000, marks=pytest.mark.soak)])
def test_every_step_can_be_the_last(
    template: Path, tmp_path: Path, label_kind: Kind, version: ModelVersion, most: int
) -> None:
    def make(name: str) -> Site:
        return Site(Path(shutil.copytree(template, tmp_path / name)), label_kind.of_a_store(), version)

    with trapped(0) as passed:
        work(make("whole"), lambda fact: None)
    steps = passed[0]
    assert steps > 20
    for at in random.Random(5).sample(range(1, steps + 1), min(most, steps)):
        site = make(str(at))
        killed, told = run_and_die(site, at)
        assert killed, f"step {at} of {steps}"
        check(site, told)
