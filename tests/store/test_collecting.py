"""Labels of stores together: shards side by side, replicas as one, whoever keeps them where."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import headwater as hw
from headwater.errors import LabelError, StoreLost, WrongUse
from headwater.store.client.labels import LabelReader
from headwater.store.client.link import Link
from headwater.store.collecting import Collected, Wanted, collect_labels
from headwater.store.labels import LabelRows, Source
from headwater.store.labels.database import LabelDatabase, open_database
from headwater.store.labels.page import LabelPage
from headwater.store.labels.schema import METADATA
from headwater.store.labels.wanted import LabelQuery
from labelled import announce, human, imported, predicted
from relabelling import write_photos
from stores import running_daemon

HUMAN: Wanted = {Source.HUMAN: None}
ALL: Wanted = {source: None for source in Source}
QUICK = Link(deadline_seconds=2, give_up_seconds=1)


@dataclass(frozen=True)
class Keeper:
    """A running store, and its labels, which can be written meanwhile."""

    address: str
    ids: NDArray[np.int64]
    database: LabelDatabase

    def write(self, rows: LabelRows, *names: str) -> None:
        """Labels are places in the names."""
        numbers = self.database.adopt("photos", names)
        self.database.write("photos", LabelRows(rows.samples, numbers[rows.labels], *rows.columns()[2:]))

    def forget(self) -> None:
        with self.database._engine.begin() as connection:
            for table in reversed(METADATA.sorted_tables):
                connection.execute(table.delete())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("collecting")
    return {name: write_photos(root / name, 12, name=f"{name}-") for name in ("north", "south")}


@pytest.fixture(scope="module")
def running(
    folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Keeper]]:
    """Two replicas of the north, a third with the database of the first, and the south.

    What the second replica writes is a second later than what the others do.
    """
    root = tmp_path_factory.mktemp("states")
    with ExitStack() as stack:
        found = {}
        for name, labels in (
            ("north", "one"),
            ("north too", "two"),
            ("north again", "one"),
            ("south", "four"),
        ):
            place, photos = root / f"{labels}.db", folders[name.split()[0]]
            later = float(labels == "two")
            database = open_database(place, clock=lambda later=later: 1000.0 + later)
            stack.callback(database.close)
            kept = {"state": root / name, "labels": str(place)}
            address = stack.enter_context(running_daemon({"photos": photos}, **kept)).serving.address
            found[name] = Keeper(f"{address}/photos", hw.open(photos).ids, database)
        yield found


@pytest.fixture
def stores(running: dict[str, Keeper]) -> dict[str, Keeper]:
    """Without a label."""
    for keeper in running.values():
        keeper.forget()
    return running


@contextmanager
def opened(*stores: Keeper) -> Iterator[hw.Dataset]:
    """As one dataset."""
    with closing(hw.open([store.address for store in stores], link=QUICK)) as data:
        yield data


def named(found: Collected) -> dict[int, str]:
    assert len(set(found.ids.tolist())) == len(found.ids)
    return {int(id): found.names[label] for id, label in zip(found.ids, found.labels, strict=True)}


def test_shards_with_classes_of_their_own(stores: dict[str, Keeper]) -> None:
    north, south = stores["north"], stores["south"]
    north.write(human(north.ids, [0, 1] * 6), "wasp", "ant")
    south.write(human(south.ids[:4], [0, 1] * 2), "bee", "wasp")
    with opened(north, south) as data:
        found = collect_labels(data.store, HUMAN)
    assert found.names == ("ant", "bee", "wasp")
    assert named(found) == {
        **dict(zip(north.ids.tolist(), ["wasp", "ant"] * 6, strict=True)),
        **dict(zip(south.ids[:4].tolist(), ["bee", "wasp"] * 2, strict=True)),
    }


def test_a_shard_without_labels_adds_none(stores: dict[str, Keeper]) -> None:
    north = stores["north"]
    north.write(human(north.ids[:3], [0, 1, 1]), "wasp", "ant")
    with opened(north, stores["south"]) as data:
        found = collect_labels(data.store, HUMAN)
    assert (found.names, len(found.ids)) == (("wasp", "ant"), 3), "in the order of the only database"


def test_only_what_is_wanted_comes(stores: dict[str, Keeper]) -> None:
    north = stores["north"]
    model = announce(north.database, 1)
    north.write(predicted(north.ids, [0] * 12, model, scores=np.linspace(0, 1, 12)), "wasp", "ant")
    north.write(human(north.ids[-2:], [1, 1]), "wasp", "ant")
    north.write(imported(north.ids[:1], [1]), "wasp", "ant")
    with opened(north) as data:
        for wanted, count in (
            ({Source.MODEL: 0.5}, 4),
            ({Source.MODEL: None}, 9),
            ({Source.HUMAN: None, Source.MODEL: 0.5}, 6),
            ({Source.IMPORT: None}, 1),
            (ALL, 12),
        ):
            assert len(collect_labels(data.store, wanted).ids) == count


def test_of_replicas_with_a_database_each_the_strongest_label_counts(stores: dict[str, Keeper]) -> None:
    """A human's over an import's over a model's; of equals the newest, which is the second store's."""
    one, two, ids = stores["north"], stores["north too"], stores["north"].ids
    models = [announce(keeper.database, 1) for keeper in (one, two)]
    one.write(predicted(ids, [0] * 12, models[0], scores=0.95), "old", "ours")
    two.write(predicted(ids[:9], [0] * 9, models[1], scores=0.6), "new")
    one.write(human(ids[0:3], [0] * 3), "a human's")
    two.write(imported(ids[2:5], [0] * 3), "an import's")
    two.write(human(ids[1:2], [0]), "a later human's")
    expected = ["a human's", "a later human's", "a human's", "an import's", "an import's"]
    expected += ["new"] * 4 + ["old"] * 3
    for order in ((one, two), (two, one)):
        with opened(*order) as data:
            everything = named(collect_labels(data.store, ALL))
            sure = named(collect_labels(data.store, {Source.MODEL: 0.9}))
            given = collect_labels(data.store, {Source.HUMAN: None, Source.IMPORT: None})
        assert [everything[id] for id in ids.tolist()] == expected
        assert sure == dict.fromkeys(ids[9:].tolist(), "old"), "of four others what counts is less sure"
        assert named(given) == dict(zip(ids[:5].tolist(), expected[:5], strict=True))
        assert given.names == ("a human's", "a later human's", "an import's", "new", "old", "ours")


def test_replicas_with_one_database_are_asked_once(
    stores: dict[str, Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    north, again = stores["north"], stores["north again"]
    north.write(human(north.ids, [0, 1] * 6), "wasp", "ant")
    asked, pages = [], LabelReader.pages
    monkeypatch.setattr(LabelReader, "pages", lambda self, query: asked.append(query) or pages(self, query))
    with opened(north, again) as data:
        assert len(collect_labels(data.store, HUMAN).ids) == 12
    assert [query.sources for query in asked] == [(Source.HUMAN,)]


def test_the_replica_that_has_labels_is_asked(stores: dict[str, Keeper]) -> None:
    north = stores["north"]
    north.write(human(north.ids, [0, 1] * 6), "wasp", "ant")
    with opened(stores["north too"], north) as data:
        assert len(collect_labels(data.store, HUMAN).ids) == 12


def test_a_replica_that_is_away_may_have_labels_that_no_other_has(
    stores: dict[str, Keeper], folders: dict[str, Path], tmp_path: Path
) -> None:
    north = stores["north"]
    north.write(human(north.ids, [0] * 12), "wasp")
    with running_daemon({"photos": folders["north"]}, state=tmp_path / "state") as away:
        data = hw.open([north.address, f"{away.serving.address}/photos"], link=QUICK)
    with closing(data), pytest.raises(StoreLost) as caught:
        collect_labels(data.store, HUMAN)
    assert "leave it out to do without those" in caught.value.__notes__[-1]


def test_nothing_is_kept_anywhere(stores: dict[str, Keeper]) -> None:
    with (
        opened(stores["north"], stores["south"]) as data,
        pytest.raises(LabelError, match=r"no labels are kept of grpc://.*/photos, grpc://.*; relabel it"),
    ):
        collect_labels(data.store, HUMAN)


def test_data_that_lies_here_has_no_store(folders: dict[str, Path]) -> None:
    with pytest.raises(WrongUse, match="is at no store that would keep labels of it"):
        collect_labels(hw.open(folders["north"]).store, HUMAN)


@pytest.mark.parametrize("always", [False, True])
def test_classes_that_change_between_two_pages(
    always: bool, stores: dict[str, Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is read again, so that no label is of a class that is none any more; and not without end."""
    north, reader, numbers = stores["north"], LabelReader.page, itertools.count()
    north.write(human(north.ids, [0, 1] * 6), "wasp", "ant")

    def page(self: LabelReader, *words: Any, **more: Any) -> LabelPage:
        found, number = reader(self, *words, **{**more, "limit": 5}), next(numbers)
        if number and (always or number == 1):
            north.database.rename("photos", north.database.classes("photos").names[0], f"w{number}")
        return found

    monkeypatch.setattr(LabelReader, "page", page)
    with opened(north) as data:
        if always:
            with pytest.raises(LabelError, match="change while labels are read; ask again"):
                collect_labels(data.store, HUMAN)
        else:
            assert set(named(collect_labels(data.store, HUMAN)).values()) == {"w1", "ant"}


def test_a_label_that_changes_its_source_between_two_queries_counts_once(
    stores: dict[str, Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was found last."""
    north, pages = stores["north"], LabelReader.pages
    north.write(predicted(north.ids, [0] * 12, announce(north.database, 1)), "wasp", "ant")

    def read(self: LabelReader, query: LabelQuery) -> Iterator[LabelPage]:
        yield from pages(self, query)
        if north.database.counts("photos")["ant"][Source.HUMAN] == 0:
            north.write(human(north.ids[:1], [1]), "wasp", "ant")

    monkeypatch.setattr(LabelReader, "pages", read)
    with opened(north) as data:
        found = named(collect_labels(data.store, {Source.MODEL: None, Source.HUMAN: None}))
    assert found == {**dict.fromkeys(north.ids.tolist(), "wasp"), int(north.ids[0]): "ant"}
