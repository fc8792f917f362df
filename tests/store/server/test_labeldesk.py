"""Requests for labels: pages of what the store keeps of its samples, and errors that tell nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwater.engine.budget import Gone
from headwater.errors import DatasetNotFound, DatasetStale, LabelError, LabelRefused, Unreachable, WrongUse
from headwater.store.labels import LabelRows, Source
from headwater.store.labels.database import LabelDatabase
from headwater.store.labels.page import Glossary, LabelPage
from headwater.store.labels.wanted import LabelQuery
from headwater.store.server.labeldesk import LabelDesk
from headwater.store.wire import labelpages
from headwater.store.wire.labelpages import Counts
from headwater.store.wire.messages import LabelRequest
from labelled import Kind, announce, digest, human, imported, predicted
from relabelling import write_photos
from workshops import Workshop, open_workshop

COUNT = 60
SEAL = 11


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("labels") / "photos", COUNT)


@pytest.fixture
def shop(photos: Path, tmp_path: Path, label_kind: Kind) -> Iterator[Workshop]:
    with open_workshop(photos, tmp_path / "state", labels=label_kind.of_a_store()) as made:
        yield made


@pytest.fixture
def own(photos: Path, tmp_path: Path) -> Iterator[Workshop]:
    """One that has its labels in a file of its own, if it has any."""
    with open_workshop(photos, tmp_path / "own") as made:
        yield made


@pytest.fixture
def database(shop: Workshop) -> LabelDatabase:
    """All photos have a label of a model, some of them one of a human; others' samples are there too."""
    found, ids = shop.state.labels, shop.store.index.ids
    numbers = found.adopt("photos", ["ant", "bee", "cat"])
    model = announce(found, 1)
    scores = np.linspace(0, 1, COUNT)
    found.write("photos", predicted(ids, numbers[np.arange(COUNT) % 3], model, scores=scores))
    found.write("photos", human(ids[:10], [numbers[1]] * 10))
    found.write("photos", imported([1, 2, 3], [numbers[0]] * 3))
    found.adopt("secret", ["x"])
    found.write("secret", human([1], [0]))
    return found


def ask(shop: Workshop, *, known: Glossary | None = None, **wishes: Any) -> tuple[LabelPage, Counts | None]:
    known = known or Glossary()
    index = shop.store.index
    request = LabelRequest("photos", index.version, "client", **{"known": known.digest, **wishes})
    ((batch, beside),) = LabelDesk(shop.state, shop.desk).read(request, "somebody", lambda: False, SEAL)
    return labelpages.unpack(batch, beside, after=request.after, seal=SEAL, known=known)


def everything(shop: Workshop, **wishes: Any) -> list[LabelRows]:
    following: int | None = -1
    found = []
    while following is not None:
        page, _ = ask(shop, after=following, **wishes)
        found.append(page.rows)
        following = page.next
    return found


def test_all_rows_of_its_own_samples_and_none_of_others(shop: Workshop, database: LabelDatabase) -> None:
    page, counts = ask(shop)
    assert page.rows.samples.tolist() == sorted(shop.store.index.ids.tolist())
    assert (page.next, page.opinions, counts) == (None, None, None)
    assert page.glossary.names == ("ant", "bee", "cat")
    assert list(page.glossary.versions.values()) == [digest(1)]
    assert sum(map(len, database.scan("photos"))) == COUNT + 3


@pytest.mark.parametrize("rows", [1, 7, 60, 1000])
def test_pages_follow_one_another(shop: Workshop, database: LabelDatabase, rows: int) -> None:
    """Also where all rows of one are somebody else's."""
    parts = everything(shop, rows=rows)
    assert np.concatenate([part.samples for part in parts]).tolist() == sorted(shop.store.index.ids.tolist())
    assert max(map(len, parts)) <= rows
    assert rows > 1 or not len(parts[0]), "the first ids are not of this dataset"


def test_what_is_asked_for(shop: Workshop, database: LabelDatabase) -> None:
    query = LabelQuery(classes=("bee",), sources=(Source.MODEL,), scores=(0.5, 1.0))
    page, _ = ask(shop, **labelpages.asking(query))
    assert page.rows.samples.tolist() == database.search("photos", query).samples.tolist()
    assert 0 < len(page.rows) < COUNT / 3


def test_opinions(shop: Workshop, database: LabelDatabase) -> None:
    page, _ = ask(shop, opinions=True, sources=["human"])
    ids = sorted(shop.store.index.ids[:10].tolist())
    assert page.rows.samples.tolist() == ids
    assert page.opinions is not None
    assert page.opinions.samples.tolist() == ids
    assert set(page.opinions.sources.tolist()) == {Source.MODEL}


def test_counts_are_of_all_that_has_the_name(shop: Workshop, database: LabelDatabase) -> None:
    page, counts = ask(shop, counts=True)
    assert counts == database.counts("photos")
    assert (len(page.rows), page.glossary.names) == (0, ("ant", "bee", "cat"))


def test_names_come_again_when_there_are_others(shop: Workshop, database: LabelDatabase) -> None:
    first = ask(shop)[0].glossary
    assert ask(shop, known=first)[0].glossary is first
    database.rename("photos", "bee", "wasp")
    assert ask(shop, known=first)[0].glossary.names == ("ant", "wasp", "cat")


def test_where_nothing_was_kept_there_is_nothing(shop: Workshop) -> None:
    page, counts = ask(shop)
    assert (len(page.rows), page.glossary.names, page.next, page.state) == (0, (), None, "")
    assert ask(shop, counts=True)[1] == {}
    assert counts is None


def test_to_look_where_nothing_was_kept_makes_no_file(own: Workshop) -> None:
    assert not len(ask(own)[0].rows)
    assert not (own.state.folder / "labels.db").exists()


def test_a_dataset_without_labels_beside_one_that_has_some(shop: Workshop) -> None:
    """The names of others are not told."""
    shop.state.labels.adopt("secret", ["x"])
    page, _ = ask(shop)
    assert (len(page.rows), page.glossary.names) == (0, ())


@pytest.mark.parametrize(
    ("wishes", "kind", "says"),
    [
        ({"classes": ["dog"]}, WrongUse, "no class is called 'dog'"),
        ({"sources": ["people"]}, WrongUse, "no source is called 'people'"),
        ({"scores": (1.0, 0.0)}, WrongUse, "holds nothing"),
        ({"model": "birds"}, LabelRefused, "model version 'birds' is not known"),
        ({"older_than": "birds"}, LabelRefused, "model version 'birds' is not known"),
    ],
)
def test_what_there_is_not(
    shop: Workshop, database: LabelDatabase, wishes: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        ask(shop, **wishes)


def test_another_dataset_or_version(shop: Workshop) -> None:
    desk = LabelDesk(shop.state, shop.desk)
    for request, kind in (
        (LabelRequest("secret", "v", "client"), DatasetNotFound),
        (LabelRequest("photos", "v", "client"), DatasetStale),
    ):
        with pytest.raises(kind):
            list(desk.read(request, "somebody", lambda: False))


def test_a_store_without_a_state_keeps_none(shop: Workshop) -> None:
    request = LabelRequest("photos", shop.store.index.version, "client")
    with pytest.raises(LabelError, match="keeps no labels; start it with --state FOLDER"):
        list(LabelDesk(None, shop.desk).read(request, "somebody", lambda: False))


def test_a_database_that_cannot_be_read_is_not_told_of(
    own: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it is stands in the store's log."""
    (own.state.folder / "labels.db").write_bytes(b"no database at all, but a file of some length" * 40)
    with pytest.raises(LabelError) as caught:
        ask(own)
    assert str(caught.value) == "the store's label database cannot be read; the store's log says why"
    assert str(own.state.folder) in caplog.text


def test_a_database_that_is_away_is_asked_again(photos: Path, tmp_path: Path) -> None:
    """The edge to Flight says so of `Unreachable`, and does not say where it is."""
    away = "postgresql://nobody@127.0.0.1:1/labels"
    with open_workshop(photos, tmp_path / "state", labels=away) as shop, pytest.raises(Unreachable):
        ask(shop)


def test_who_hung_up_is_not_answered(shop: Workshop, database: LabelDatabase) -> None:
    request = LabelRequest("photos", shop.store.index.version, "client")
    with pytest.raises(Gone):
        list(LabelDesk(shop.state, shop.desk).read(request, "somebody", lambda: True))


def test_what_was_sent_is_counted(shop: Workshop, database: LabelDatabase) -> None:
    ask(shop)
    sent = shop.desk.ledger.snapshot()["headwater_bytes_sent_total"]
    assert isinstance(sent, dict)
    assert sent["labels"] == 45 * COUNT
