"""Labels over the wire: all of them, in pages, whatever the link and whoever writes meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater as hw
from headwater.errors import DatasetNotFound, LabelError, LabelRefused, Refused, StoreLost, WrongUse
from headwater.store.client import labels as client
from headwater.store.client.address import Address, Secret
from headwater.store.client.connection import Connection
from headwater.store.client.labels import LabelReader, StoreLabels, labels_of
from headwater.store.client.link import Link
from headwater.store.labels import LabelRows, Source, open_labels
from headwater.store.labels.database import LabelDatabase
from headwater.store.labels.page import LabelPage
from headwater.store.labels.wanted import LabelQuery
from headwater.store.server.daemon import Daemon
from labelled import Kind, announce, digest, human, predicted
from relabelling import write_photos
from stores import running_daemon, write_tokens

COUNT = 150
QUICK = Link(deadline_seconds=5, give_up_seconds=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("labels")
    write_photos(made / "photos", COUNT)
    write_photos(made / "bare", 5, name="other-")
    return made


@pytest.fixture(scope="module")
def place(shared_label_kind: Kind) -> str:
    return shared_label_kind.make()


@pytest.fixture(scope="module")
def database(folder: Path, place: str) -> Iterator[LabelDatabase]:
    """What the store keeps, looked at while it runs."""
    ids = hw.open(folder / "photos").ids
    with closing(open_labels(place)) as made:
        numbers = made.adopt("photos", ["ant", "bee", "cat"])
        rows = predicted(
            ids, numbers[np.arange(COUNT) % 3], announce(made, 1), scores=np.linspace(0, 1, COUNT)
        )
        made.write("photos", rows)
        made.write("photos", human(ids[:20], [numbers[2]] * 20))
        yield made


@pytest.fixture(scope="module")
def daemon(folder: Path, database: LabelDatabase, place: str) -> Iterator[Daemon]:
    served = {"photos": folder / "photos", "bare": folder / "bare"}
    with running_daemon(served, state=folder / "state", labels=place) as made:
        yield made


@pytest.fixture
def store(daemon: Daemon) -> Iterator[StoreLabels]:
    with labels_of(daemon.serving.address, link=QUICK) as found:
        yield found


def reader(daemon: Daemon, link: Link = QUICK) -> LabelReader:
    connection = Connection(Address.parse(daemon.serving.address), Secret(), link)
    return LabelReader(connection, "photos", daemon.serving.datasets["photos"][1])


def assert_same(one: LabelRows, other: LabelRows) -> None:
    for got, wanted in zip(one.columns(), other.columns(), strict=True):
        np.testing.assert_array_equal(got, wanted)


QUERIES = {
    "all": LabelQuery(),
    "humans": LabelQuery(sources=(Source.HUMAN,)),
    "sure": LabelQuery(sources=(Source.MODEL,), scores=(0.9, 1.0)),
    "a class of a version": LabelQuery(classes=("bee",), model=digest(1)),
}


@pytest.mark.parametrize("name", QUERIES)
def test_the_rows_are_those_of_the_database(
    store: StoreLabels, database: LabelDatabase, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ROWS", 40)
    expected = database.search("photos", QUERIES[name])
    assert 0 < len(expected) <= COUNT
    assert_same(store.search("photos", QUERIES[name]), expected)
    assert_same(store.search("photos", QUERIES[name], limit=5), expected.take(slice(5)))
    half = int(expected.samples[len(expected) // 2])
    assert_same(
        store.search("photos", QUERIES[name], after=half),
        database.search("photos", QUERIES[name], after=half),
    )


def test_sheets_counts_and_names(store: StoreLabels, database: LabelDatabase) -> None:
    assert store.counts("photos") == database.counts("photos")
    assert store.glossary("photos").digest == database.glossary("photos").digest
    for opinions in (False, True):
        (found,), (expected,) = (one.sheets("photos", opinions=opinions) for one in (store, database))
        assert found.table == expected.table
        assert (found.opinions is None) == (not opinions)
        if found.opinions is not None and expected.opinions is not None:
            assert found.opinions.table == expected.opinions.table


def test_pages_go_on_where_the_one_before_ended(daemon: Daemon, database: LabelDatabase) -> None:
    source = reader(daemon)
    source._rows = 40
    pages = list(source.pages())
    assert [len(page.rows) for page in pages] == [40, 40, 40, 30]
    assert_same(pages[0].rows.join(*(page.rows for page in pages[1:])), database.search("photos"))


def test_a_label_that_is_written_meanwhile_comes_once(daemon: Daemon, database: LabelDatabase) -> None:
    source = reader(daemon)
    source._rows = 40
    samples, first = [], True
    for page in source.pages():
        samples += page.rows.samples.tolist()
        if first:
            last = database.search("photos").samples[-1:]
            database.write("photos", human(last, [0]))
            database.undo("photos")
            first = False
    assert len(samples) == len(set(samples)) == COUNT


def test_a_store_that_is_late_is_asked_for_fewer_rows(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This one is with more than 60 of them."""
    over, page = threading.Event(), LabelDatabase.page

    def slowly(self: LabelDatabase, *words: Any, limit: int, **more: Any) -> LabelPage:
        if limit > 60:
            over.wait(10)
        return page(self, *words, limit=limit, **more)

    monkeypatch.setattr(client, "_LEAST_ROWS", 1)
    monkeypatch.setattr(LabelDatabase, "page", slowly)
    source = reader(daemon, Link(deadline_seconds=1, give_up_seconds=20))
    source._rows = COUNT
    found = [len(each.rows) for each in source.pages()]
    over.set()
    assert (found, sum(found)) == ([37, 37, 37, 37, 2], COUNT)


def test_what_the_store_says_is_said_here(store: StoreLabels) -> None:
    with pytest.raises(LabelError, match="keeps no labels of a dataset 'bare'"):
        store.counts("bare")
    with pytest.raises(DatasetNotFound, match="no dataset 'others'"):
        store.counts("others")
    with pytest.raises(WrongUse, match="no class is called 'dog'"):
        store.search("photos", LabelQuery(classes=("dog",)))
    with pytest.raises(LabelRefused, match="'birds' is not known"):
        store.search("photos", LabelQuery(model="birds"))


def test_the_address_of_another_dataset(daemon: Daemon) -> None:
    with (
        labels_of(f"{daemon.serving.address}/bare") as store,
        pytest.raises(WrongUse, match="another dataset"),
    ):
        store.counts("photos")
    with labels_of(f"{daemon.serving.address}/photos") as store:
        assert store.counts("photos")


@pytest.mark.parametrize("shared_label_kind", ["sqlite"], indirect=True)
def test_who_may_read_the_samples_may_read_their_labels(
    folder: Path, database: LabelDatabase, place: str, tmp_path: Path
) -> None:
    """And nobody else."""
    secrets = {"reader": "r" * 32, "labeller": "l" * 32, "elsewhere": "e" * 32}
    tokens = write_tokens(
        tmp_path,
        reader={"secret": secrets["reader"], "scopes": ["read"], "datasets": ["photos"]},
        labeller={"secret": secrets["labeller"], "scopes": ["labels", "jobs", "models", "admin"]},
        elsewhere={"secret": secrets["elsewhere"], "scopes": ["read"], "datasets": ["bare"]},
    )
    served = {"photos": folder / "photos", "bare": folder / "bare"}
    with running_daemon(served, state=tmp_path / "state", labels=place, token_file=tokens) as daemon:
        version = daemon.serving.datasets["photos"][1]
        for name, secret in secrets.items():
            connection = Connection(Address.parse(daemon.serving.address), Secret(secret), QUICK)
            source = LabelReader(connection, "photos", version)
            if name == "reader":
                assert len(source.page().rows) == COUNT
                continue
            with pytest.raises(Refused, match=r"lacks scope 'read'|not good for dataset 'photos'"):
                source.page()


def test_a_store_that_is_gone(folder: Path) -> None:
    with running_daemon({"photos": folder / "photos"}) as daemon:
        source = reader(daemon, Link(deadline_seconds=1, give_up_seconds=1))
        with pytest.raises(LabelError, match="this store keeps no labels"):
            source.page()
    with pytest.raises(StoreLost, match="fetching labels"):
        source.page()
