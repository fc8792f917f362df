"""Records of jobs: whole or not there, named by what they count."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headwater.store.jobs.record import (
    DONE,
    MOST_FAILURES,
    RUNNING,
    Failing,
    JobFolder,
    JobRecord,
    Pending,
    to_facts,
)
from headwater.store.wire import messages
from killing import find_points, kill_at


def record(id: str = "a", **facts: object) -> JobRecord:
    made = JobRecord(
        id=id, kind="relabel", dataset="photos", version="v", model="m", by="me", begun="2026-01-01"
    )
    return msgspec.structs.replace(made, **facts)


def test_records_come_back(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    pending = Pending("key", 7, 12, {"changed": 3}, (Failing(1, "k", "why"),))
    first = record("a", pending=pending, counts={"changed": 4}, options={"opinions": True}, state=RUNNING)
    second = record("b", begun="2025-01-01", state=DONE)
    folder.save(first)
    folder.save(second)
    assert JobFolder(tmp_path).load() == [second, first]


def test_what_cannot_be_read_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "strange.json").write_text("{")
    JobFolder(tmp_path).save(record())
    assert JobFolder(tmp_path).load() == [record()]
    assert "strange.json" in caplog.text
    assert (tmp_path / "strange.json").exists()


def test_only_the_last_of_those_that_are_over_stay(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    for number in range(105):
        folder.save(record(f"{number:03d}", begun=f"2026-{number:04d}", state=DONE))
    folder.save(record("first", begun="2020", state=RUNNING))
    left = [one.id for one in folder.load()]
    assert left == ["first", *(f"{number:03d}" for number in range(5, 105))]
    assert len(list(tmp_path.glob("*.json"))) == 101


def test_counts_add_up_and_the_first_failures_are_named() -> None:
    many = tuple(Failing(number, f"{number}.jpg", "no") for number in range(MOST_FAILURES - 1))
    counted = record(counts={"changed": 1}).counting({"changed": 2, "failed": 99}, many)
    again = counted.counting({"failed": 2}, (Failing(1000, "x", "no"), Failing(1001, "y", "no")))
    assert again.counts == {"changed": 3, "failed": 101}
    assert len(again.failures) == MOST_FAILURES
    assert again.failures[-1].key == "x"


def test_facts_tell_what_a_caller_may_know() -> None:
    failures = (Failing(1, "k", "why"),)
    facts = to_facts(record(cursor=5, total=9, failures=failures, by="secret caller", state=DONE))
    assert (facts.done, facts.total, facts.failures[0].key) == (5, 9, "k")
    assert "secret caller" not in str(facts)


def test_failures_are_told_once_it_is_over_and_to_who_asks_for_them() -> None:
    """Who waits looks again and again, and a hundred failures are tens of kilobytes."""
    many = tuple(Failing(number, f"{number}.jpg", "x" * 300) for number in range(MOST_FAILURES))
    under_way, over = record(failures=many, state=RUNNING), record(failures=many, state=DONE)
    assert len(to_facts(over).failures) == MOST_FAILURES
    for facts in (to_facts(under_way), to_facts(over, failures=False)):
        assert facts.failures == []
        assert len(messages.encode(facts)) < 500


def test_a_kill_while_saving_leaves_old_or_new(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    old, new = record(cursor=1), record(cursor=2, counts={"changed": 5})

    def save() -> None:
        folder.save(new)

    folder.save(old)
    points = len(find_points(save))
    assert points > 5
    for point in range(1, points + 1):
        folder.save(old)
        kill_at(point, save)
        assert folder.load() in ([old], [new])
