"""A real store that is killed while it forgets: after a new start it has finished, and nobody asks it to."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from headwater.data.forgetting import Audit
from headwater.data.forgotten import locked
from headwater.errors import HeadwaterError
from headwater.models.registry import Registry
from headwater.store.client.address import Secret
from headwater.store.client.forgetting import forget_client
from headwater.store.client.link import Link
from headwater.tune.forget.traces import Marks, find_traces
from headwater.tune.relabel import Wish, relabel_at
from relabelling import small_model, write_photos
from stores import StoreProcess

COUNT, KEY = 12, "00007.jpg"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    """Photos that a model has labelled, so that there are features, labels and a job."""
    write_photos(tmp_path / "photos", COUNT)
    Registry(tmp_path / "state" / "models").put(small_model(), name="small", switch=True)
    environment = {"HEADWATER_CACHE": str(tmp_path / "cache")}
    with StoreProcess(
        {"photos": tmp_path / "photos"}, environment=environment, state=tmp_path / "state"
    ) as store:
        (done,) = relabel_at([f"{store.address}/photos"], Wish(model="small"))
        assert done.ok, done
        yield store


@contextmanager
def before_it_is_left_out(state: Path) -> Iterator[None]:
    """The store has written down what it does, and waits for the lists of forgotten samples."""
    with locked(state / "forgotten"):
        yield


@contextmanager
def before_its_labels_go(state: Path) -> Iterator[None]:
    """The store has left the sample out and deleted features, and waits for the label database."""
    with closing(sqlite3.connect(state / "labels.db")) as held:
        held.execute("BEGIN IMMEDIATE")
        yield


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end, "it never came so far"
        time.sleep(0.02)


def ask(store: StoreProcess, id: int) -> None:
    """Nobody is told that it was done."""
    with (
        suppress(HeadwaterError),
        forget_client(f"{store.address}/photos", Secret(None), Link()) as client,
    ):
        client.forget("photos", [id])


@pytest.mark.slow
@pytest.mark.parametrize("moment", [before_it_is_left_out, before_its_labels_go])
def test_a_store_that_was_killed_finishes_by_itself(
    moment: Callable[[Path], AbstractContextManager[None]], store: StoreProcess, tmp_path: Path
) -> None:
    state, kept = tmp_path / "state", [tmp_path / "state", tmp_path / "cache"]
    forgotten = state / "forgotten"
    with closing(hw.open(f"{store.address}/photos", progress=False)) as data:
        (sample,) = (data[number] for number in range(len(data)) if data[number].key == KEY)
    marks = Marks.of(sample.id, sample.key, bytes(sample.data))
    with moment(state):
        asking = threading.Thread(target=ask, args=(store, sample.id))
        asking.start()
        listed = moment is before_its_labels_go
        wait_for(lambda: any((forgotten / "plans").glob("[!.]*")))
        wait_for(lambda: any((forgotten / "lists").glob("[!.]*")) == listed)
        store.kill()
    names = {trace.path.name.removesuffix("-wal") for trace in find_traces(kept, marks)}
    assert "labels.db" in names, "it was in the middle"
    store.restart()
    asking.join()
    assert "were being forgotten when the store ended; that is done" in store.stderr
    assert not find_traces(kept, marks)
    with closing(hw.open(f"{store.address}/photos", progress=False)) as data:
        assert len(data) == COUNT - 1
        assert not data.index.has(np.array([sample.id])).any()
    (line,) = Audit(forgotten).lines()
    assert (line["samples"], line["found"]["index"]) == (1, 1)
    assert line["found"]["labels"] > 0
    assert not list((forgotten / "plans").iterdir())
