"""Several processes at one database: nothing lost, nothing doubled, and a human is never overwritten."""

from __future__ import annotations

import os
from contextlib import closing

import numpy as np
import pytest

from headwater.errors import LabelRefused
from headwater.store.labels import Source, open_labels
from headwater.store.labels.database import LabelDatabase
from labelled import (
    NAMES,
    Kind,
    announce,
    digest,
    end_of,
    human,
    in_force,
    in_process,
    predicted,
    remembered,
)

ROWS = 60


def prepare(kind: Kind) -> str:
    """A database with two versions and classes, which nobody has open."""
    place = kind.make()
    with closing(open_labels(place)) as database:
        announce(database, 1)
        announce(database, 2)
        database.adopt("photos", NAMES)
    return place


def together(place: str, *works: object) -> list[int]:
    """Run the works in processes that begin at the same moment; their exit codes."""
    reading, writing = os.pipe()

    def begin(work: object) -> object:
        def run(database: LabelDatabase) -> None:
            os.close(writing)
            os.read(reading, 1)  # until the other end is closed
            work(database)  # type: ignore[operator]

        return run

    children = [in_process(place, begin(work)) for work in works]  # type: ignore[arg-type]
    os.close(reading)
    os.close(writing)
    return [end_of(child) for child in children]


def test_two_write_different_rows(kind: Kind) -> None:
    place = prepare(kind)

    def work(first: int) -> object:
        def write(database: LabelDatabase) -> None:
            model = database.model(digest(1)).number
            for chunk, start in enumerate(range(first, ROWS, 20)):
                samples = np.arange(start, start + 10)
                rows = predicted(samples, samples % 4, model)
                database.write("photos", rows, key=f"job {first}", chunk=chunk)

        return write

    assert together(place, work(0), work(10)) == [0, 0]
    with closing(open_labels(place)) as database:
        assert in_force(database) == {sample: (sample % 4, "model") for sample in range(ROWS)}
        assert sorted(entry.wrote for entry in database.log("photos")) == [30, 30]
        assert len(remembered(database)["history"]) == ROWS


def test_two_do_the_same_job(kind: Kind) -> None:
    """A job that was given up for lost, and is not."""
    place = prepare(kind)

    def work(database: LabelDatabase) -> None:
        model = database.model(digest(1)).number
        for chunk in range(6):
            samples = np.arange(10 * chunk, 10 * chunk + 10)
            database.write("photos", predicted(samples, samples % 4, model), key="job", chunk=chunk)

    assert together(place, work, work) == [0, 0]
    with closing(open_labels(place)) as database:
        (entry,) = database.log("photos")
        assert (entry.wrote, entry.kept) == (ROWS, 0)
        assert len(remembered(database)["history"]) == ROWS


@pytest.mark.parametrize("turn", range(3))
def test_a_human_and_a_model_at_the_same_row(kind: Kind, turn: int) -> None:
    """Whoever comes first, the human stays, and what the model said is kept as its opinion."""
    place = prepare(kind)

    def correct(database: LabelDatabase) -> None:
        for sample in range(ROWS - 1, -1, -3):
            database.write("photos", human([sample], [3]))

    def label(database: LabelDatabase) -> None:
        model = database.model(digest(2)).number
        for start in range(0, ROWS, 6):
            database.write("photos", predicted(range(start, start + 6), [1] * 6, model))

    works = (correct, label) if turn % 2 else (label, correct)
    assert together(place, *works) == [0, 0]
    with closing(open_labels(place)) as database:
        found = in_force(database)
        corrected = range(ROWS - 1, -1, -3)
        assert {sample for sample, (_, who) in found.items() if who == "human"} == set(corrected)
        assert {found[sample] for sample in corrected} == {(3, "human")}
        assert len(found) == ROWS
        opinions = database.get("photos", range(ROWS), opinions=True)
        assert opinions.samples.tolist() == sorted(corrected)
        assert set(opinions.labels.tolist()) == {1}
        assert set(opinions.sources.tolist()) == {Source.MODEL}


def test_two_announce_the_same_version(kind: Kind) -> None:
    place = prepare(kind)

    def work(database: LabelDatabase) -> None:
        for number in range(10, 20):
            announce(database, number)

    assert together(place, work, work) == [0, 0]
    with closing(open_labels(place)) as database:
        assert [version.digest for version in database.models()[2:]] == [digest(n) for n in range(10, 20)]


def test_two_undo_the_same_revision(kind: Kind) -> None:
    place = prepare(kind)
    with closing(open_labels(place)) as database:
        revision = database.write("photos", human(range(ROWS), [1] * ROWS)).revision

    def work(database: LabelDatabase) -> None:
        try:
            database.undo("photos", revision)
        except LabelRefused:
            os._exit(9)

    assert sorted(together(place, work, work)) == [0, 9]
    with closing(open_labels(place)) as database:
        assert in_force(database) == {}
        assert [entry.kind for entry in database.log("photos")] == ["undo", "write"]


def test_readers_see_whole_revisions(kind: Kind) -> None:
    """While one process turns all labels from one class to the next, another never sees two classes."""
    place = prepare(kind)
    with closing(open_labels(place)) as database:
        database.write("photos", human(range(ROWS), [0] * ROWS))

    def turn(database: LabelDatabase) -> None:
        for label in range(1, 13):
            database.write("photos", human(range(ROWS), [label % 4] * ROWS))

    def watch(database: LabelDatabase) -> None:
        for _ in range(30):
            assert len({label for label, _ in in_force(database).values()}) == 1
            assert sorted(sum(row.values()) for row in database.counts("photos").values()) == [0, 0, 0, ROWS]

    assert together(place, turn, watch) == [0, 0]
