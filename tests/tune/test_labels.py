"""Which labels are learnt: the data's own, or those of a database that a wish asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import headwater as hw
from headwater.errors import LabelError, WrongUse
from headwater.store.labels import LabelRows, Source, open_labels
from headwater.store.labels.database import LabelDatabase
from headwater.tune.labels import Clause, Labelled, labels_from, own_labels, parse
from labelled import Kind
from stores import running_daemon


@pytest.fixture(scope="module")
def data(colours: Path) -> hw.Dataset:
    return hw.open(colours)


@pytest.fixture
def place(label_kind: Kind) -> str:
    """Of a database, of either kind."""
    return label_kind.make()


@pytest.fixture
def database(place: str, data: hw.Dataset) -> Iterator[LabelDatabase]:
    """Humans have labelled the first ten, a model the next twenty with growing scores, an import the rest."""
    made = open_labels(place)
    made.announce("0" * 32, name="plain")
    numbers = made.adopt("colours", ["sky", "leaf", "brick", "unused"])
    ids = np.asarray(data.ids)
    kinds = numbers[np.arange(len(ids)) % 3]
    made.write("colours", LabelRows.of(ids[:10], kinds[:10], source=Source.HUMAN))
    scores = np.linspace(0.5, 0.975, 20)
    model = made.model("plain").number
    rows = LabelRows.of(
        ids[10:30], kinds[10:30], source=Source.MODEL, scores=scores, margins=1.0, model=model
    )
    made.write("colours", rows)
    made.write("colours", LabelRows.of(ids[30:], kinds[30:], source=Source.IMPORT))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("wish", "clauses"),
    [
        ("human", (Clause("human"),)),
        ("model>=0.9", (Clause("model", 0.9),)),
        ("human + model >= .5", (Clause("human"), Clause("model", 0.5))),
        ("import+human+model>=1", (Clause("import"), Clause("human"), Clause("model", 1.0))),
    ],
)
def test_wishes(wish: str, clauses: tuple[Clause, ...]) -> None:
    assert parse(wish) == clauses


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ("", "does not say which labels"),
        ("people", "write 'data', or some of human, import, model"),
        ("model>0.9", "does not say"),
        ("model>=2", "does not say"),
        ("human>=0.5", "only labels of a model have a score"),
        ("human+human", "names a source twice"),
    ],
)
def test_what_is_no_wish(wish: str, says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        parse(wish)


def test_the_datas_own_labels(data: hw.Dataset) -> None:
    found = own_labels(data)
    assert found.classes == ("blue", "green", "red")
    assert len(found) == 180
    assert np.array_equal(found.labels, data.labels)


def test_samples_without_a_label_are_left_out(colours: Path, data: hw.Dataset) -> None:
    labels = np.asarray(data.labels).copy()
    labels[::3] = -1
    index = data.index
    changed = type(index).build(index.keys, index.sizes, labels=labels, classes=index.classes)
    source = data.store.source  # type: ignore[attr-defined]
    unlabelled = hw.Dataset(_Relabelled(data.store, changed))  # type: ignore[arg-type]
    assert source is not None
    found = own_labels(unlabelled)
    assert len(found) == 120
    assert np.array_equal(found.labels, labels[labels >= 0])
    assert np.array_equal(found.dataset.ids, data.ids[labels >= 0])


class _Relabelled:
    """A store whose index has other labels."""

    def __init__(self, store: object, index: object) -> None:
        self.index, self.uri, self.remote = index, "here", False


def test_labels_without_names_are_called_by_their_numbers(data: hw.Dataset) -> None:
    index = data.index
    numbered = type(index).build(index.keys, index.sizes, labels=index.labels + 1)
    found = own_labels(hw.Dataset(_Relabelled(data.store, numbered)))  # type: ignore[arg-type]
    assert found.classes == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("wish", "count"),
    [("human", 10), ("model>=0.9", 4), ("model", 20), ("human+model>=0.9", 14), ("human+import+model", 180)],
)
def test_a_database_is_asked_by_a_wish(
    database: LabelDatabase, data: hw.Dataset, wish: str, count: int
) -> None:
    found = labels_from(database, "colours", dataset=data, wish=wish)
    assert (len(found), found.said) == (count, wish)
    assert found.classes == ("sky", "leaf", "brick")
    places = {id: place for place, id in enumerate(np.asarray(data.ids).tolist())}
    assert found.labels.tolist() == [places[id] % 3 for id in found.dataset.ids.tolist()]


def test_samples_come_in_the_order_in_which_they_lie(database: LabelDatabase, data: hw.Dataset) -> None:
    """Stores read them in this order; that of ids, which are hashes, would be any."""
    found = labels_from(database, "colours", dataset=data, wish="human+model>=0.9")
    positions = found.dataset.positions()
    assert (np.diff(positions) > 0).all()
    assert (np.diff(found.dataset.ids) < 0).any()


def test_merged_classes_are_one(database: LabelDatabase, data: hw.Dataset) -> None:
    database.merge("colours", "leaf", "sky")
    found = labels_from(database, "colours", dataset=data, wish="human+import+model")
    assert found.classes == ("sky", "brick")
    assert np.bincount(found.labels).tolist() == [120, 60]


def test_rows_of_samples_that_are_not_in_the_data_are_left_out(
    database: LabelDatabase, data: hw.Dataset
) -> None:
    some = data.select(np.asarray(data.ids)[:20])
    assert len(labels_from(database, "colours", dataset=some, wish="human+import+model")) == 20


def test_a_dataset_that_the_database_does_not_know(database: LabelDatabase, data: hw.Dataset) -> None:
    with pytest.raises(LabelError, match="no labels are kept of a dataset 'other'"):
        labels_from(database, "other", dataset=data, wish="human")


def test_stores_are_asked_by_the_same_wish(
    database: LabelDatabase, place: str, data: hw.Dataset, colours: Path, tmp_path: Path
) -> None:
    """And what they keep is learnt as if their database were here."""
    with (
        running_daemon({"colours": colours}, state=tmp_path / "state", labels=place) as daemon,
        closing(hw.open(f"{daemon.serving.address}/colours")) as remote,
    ):
        some = remote.select(np.asarray(data.ids)[:20])
        for wish in ("human", "model>=0.9", "human+model>=0.9", "human+import+model"):
            here = labels_from(database, "colours", dataset=data, wish=wish)
            there = labels_from(dataset=remote, wish=wish)
            assert (there.digest, there.classes, there.said) == (here.digest, here.classes, wish)
        assert len(labels_from(dataset=some, wish="human+import+model")) == 20
        with pytest.raises(WrongUse, match="does not say which labels"):
            labels_from(dataset=remote, wish="people")


def test_data_that_lies_here_needs_a_database(data: hw.Dataset) -> None:
    with pytest.raises(WrongUse, match="is at no store that would keep labels of it; name their database"):
        labels_from(dataset=data, wish="human")


def test_one_class_is_too_few(data: hw.Dataset) -> None:
    with pytest.raises(WrongUse, match="60 samples with a label, of 1 classes"):
        own_labels(data.filter(labels=["red"]))
    with pytest.raises(WrongUse, match="3 labels for 180 samples"):
        Labelled(data, np.array([0, 1, 2]), ("a", "b", "c"))


def test_the_digest_is_of_samples_labels_and_names(data: hw.Dataset) -> None:
    one = own_labels(data)
    others = [
        Labelled(data, (one.labels + 1) % 3, one.classes),
        Labelled(data, one.labels, ("a", "b", "c")),
        own_labels(data.select(np.asarray(data.ids)[1:])),
    ]
    assert one.digest == own_labels(data).digest
    assert len({one.digest, *(other.digest for other in others)}) == 4
