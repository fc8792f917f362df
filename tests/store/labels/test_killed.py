"""Killed with SIGKILL in the middle of a change: afterwards all of it is there, or nothing."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from headwater.store.labels import open_labels, writing
from headwater.store.labels.database import LabelDatabase
from labelled import (
    NAMES,
    AtStatement,
    Kind,
    Templates,
    Trap,
    WithinStatement,
    announce,
    contents,
    digest,
    end_of,
    human,
    imported,
    in_force,
    in_process,
    predicted,
    remembered,
)

ROWS = 40
Work = Callable[[LabelDatabase], object]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one write is many statements."""
    monkeypatch.setattr(writing, "ROWS_AT_ONCE", 16)


def prepare(kind: Kind) -> str:
    """Rows of all sources, and nobody who has the database open."""
    place = kind.make()
    with closing(open_labels(place)) as database:
        first = announce(database, 1)
        announce(database, 2)
        database.adopt("photos", NAMES)
        database.write("photos", predicted(range(ROWS), [0] * ROWS, first))
        database.write("photos", imported(range(0, ROWS, 3), [1] * len(range(0, ROWS, 3))))
        database.write("photos", human(range(0, ROWS, 5), [2] * len(range(0, ROWS, 5))))
    return place


def label(database: LabelDatabase) -> None:
    model = database.model(digest(2)).number
    samples = np.arange(5, ROWS + 5)
    database.write("photos", predicted(samples, [3] * ROWS, model))


def correct(database: LabelDatabase) -> None:
    database.write("photos", human(range(7, ROWS + 7), [3] * ROWS))


def undo(database: LabelDatabase) -> None:
    database.undo("photos")


WORKS: dict[str, Work] = {"label": label, "correct": correct, "undo": undo}


def state(place: str) -> list[object]:
    """All that the change changes."""
    with closing(open_labels(place)) as database:
        log = [(e.number, e.kind, e.wrote, e.kept, e.undone_by) for e in database.log()]
        return [_without_time(contents(database)), _without_time(remembered(database)), log]


def _without_time(tables: dict[str, list[tuple[object, ...]]]) -> dict[str, list[tuple[object, ...]]]:
    """The clock is the child's own."""
    return {
        name: [tuple(value for value in row if not _is_time(value)) for row in rows]
        for name, rows in tables.items()
    }


def _is_time(value: object) -> bool:
    return isinstance(value, int) and value > 1 << 40


def check_all_or_nothing(kind: Kind, work: Work, trap: type[Trap], *, most: int) -> int:
    """Kill the work at so many of its steps, or at all of them; at how many."""
    old, place, counter = state(prepare(kind)), prepare(kind), trap()
    with closing(open_labels(place)) as database:
        counter(database)
        work(database)
        steps = counter.steps
    new = state(place)
    assert old != new
    chosen = random.Random(steps).sample(range(1, steps + 1), min(most, steps))
    for number in chosen:
        place = prepare(kind)
        ended = end_of(in_process(place, work, trap=trap(number)))
        found = state(place)
        assert found == (new if ended == 0 else old), f"step {number} of {steps}"
        assert ended in (0, -signal.SIGKILL)
    return len(chosen)


@pytest.mark.parametrize("name", WORKS)
def test_killed_between_statements(kind: Kind, name: str) -> None:
    assert check_all_or_nothing(kind, WORKS[name], AtStatement, most=6) == 6


@pytest.mark.soak
@pytest.mark.parametrize("name", WORKS)
def test_killed_between_all_statements(kind: Kind, name: str) -> None:
    assert check_all_or_nothing(kind, WORKS[name], AtStatement, most=1000) >= 16


@pytest.fixture
def lite(label_templates: Templates, tmp_path: Path) -> Kind:
    return label_templates.sqlite_kind(tmp_path)


@pytest.mark.parametrize("name", WORKS)
def test_killed_within_a_statement_of_sqlite(lite: Kind, name: str) -> None:
    assert check_all_or_nothing(lite, WORKS[name], WithinStatement, most=6) == 6


@pytest.mark.soak
@pytest.mark.parametrize("name", WORKS)
def test_killed_at_many_points_within_statements_of_sqlite(lite: Kind, name: str) -> None:
    assert check_all_or_nothing(lite, WORKS[name], WithinStatement, most=100) >= 50


def relabel(database: LabelDatabase) -> None:
    """As a job does: page by page what is stale, each page a chunk by its first id."""
    model = database.model(digest(2))
    while len(samples := database.stale("photos", model.digest, limit=6)):
        rows = predicted(samples, samples % 4, model.number)
        database.write("photos", rows, key="relabel", chunk=int(samples[0]))


def check_resumed(kind: Kind, numbers: list[int]) -> int:
    """Kill a job at one point after the other until it ends; how often that was."""
    place, killed = prepare(kind), 0
    for number in numbers:
        ended = end_of(in_process(place, relabel, trap=AtStatement(number)))
        killed += ended == -signal.SIGKILL
        if ended == 0:
            break
    assert end_of(in_process(place, relabel)) == 0
    with closing(open_labels(place)) as database:
        stale = [s for s in range(ROWS) if s % 3 and s % 5]
        found = {s: row for s, row in in_force(database).items() if row[1] == "model"}
        assert found == {s: (s % 4, "model") for s in stale}
        entry = database.log("photos")[0]
        assert (entry.key, entry.wrote) == ("relabel", len(stale))
        replaced = [row for row in remembered(database)["history"] if row[0] == entry.number]
        assert sorted(row[3] for row in replaced) == stale
    return killed


def test_a_job_resumes_with_nothing_lost_and_nothing_doubled(kind: Kind) -> None:
    drawn = random.Random(5)
    assert check_resumed(kind, [drawn.randrange(1, 60) for _ in range(8)]) >= 4


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_a_job_resumes_however_often_it_is_killed(kind: Kind, seed: int) -> None:
    drawn = random.Random(seed)
    check_resumed(kind, [drawn.randrange(1, 60) for _ in range(20)])
