from __future__ import annotations

import json
import os
import resource
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.errors import WrongUse
from headwater.store.server.audit import AuditLog


@dataclass
class Clock:
    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Person:
    name: str = "trainer"
    peer: str = "ipv4:192.0.2.1:50001"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def audit(path: Path, clock: Clock) -> Iterator[AuditLog]:
    log = AuditLog(path, clock=clock)
    yield log
    log.close()


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_an_event_is_a_line_at_once(audit: AuditLog, path: Path) -> None:
    audit.event("drain", Person(), dataset="photos", outcome="failed", seconds=3.5)
    assert lines(path) == [
        {
            "time": "2027-01-15T08:00:00.000Z",
            "action": "drain",
            "caller": "trainer",
            "peer": "192.0.2.1",
            "dataset": "photos",
            "outcome": "failed",
            "seconds": 3.5,
        }
    ]


def test_only_the_owner_may_read_the_file(audit: AuditLog, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_fact_cannot_pose_as_somebody_else(audit: AuditLog, path: Path) -> None:
    audit.event("drain", Person(), peer="10.0.0.1", time="yesterday")
    assert lines(path)[0]["peer"] == "192.0.2.1"
    assert lines(path)[0]["time"] == "2027-01-15T08:00:00.000Z"


def test_reads_are_added_up_and_written_once_per_interval(audit: AuditLog, path: Path, clock: Clock) -> None:
    for port in range(100):
        clock.now += 0.0625
        audit.read(Person(peer=f"ipv4:192.0.2.1:{port}"), "photos", samples=64, bytes=1000)
    audit.read(Person("other"), "photos", samples=1, bytes=2)
    audit.read(Person(), "photos", samples=0, bytes=0, outcome="failed")
    assert lines(path) == []
    clock.now += 3.75
    audit.read(Person(), "photos", samples=64, bytes=1000)
    found = {(line["caller"], line["outcome"]): line for line in lines(path)}
    assert set(found) == {("trainer", "ok"), ("other", "ok"), ("trainer", "failed")}
    mine = found["trainer", "ok"]
    assert (mine["action"], mine["peer"], mine["dataset"]) == ("read", "192.0.2.1", "photos")
    assert (mine["requests"], mine["samples"], mine["bytes"]) == (101, 6464, 101_000)
    assert (mine["from"], mine["to"]) == ("2027-01-15T08:00:00.062Z", "2027-01-15T08:00:10.000Z")


@pytest.mark.parametrize("how", ["flush", "close"])
def test_what_is_added_up_is_written_when_asked_for(audit: AuditLog, path: Path, how: str) -> None:
    audit.read(Person(), "photos", samples=64, bytes=1000)
    getattr(audit, how)()
    getattr(audit, how)()
    assert [line["samples"] for line in lines(path)] == [64]


def test_an_event_after_the_interval_brings_the_reads_along(
    audit: AuditLog, path: Path, clock: Clock
) -> None:
    audit.read(Person(), "photos", samples=64, bytes=1000)
    clock.now += 10
    audit.event("drain", Person())
    assert [line["action"] for line in lines(path)] == ["drain", "read"]


def test_reads_from_many_threads_lose_nothing(audit: AuditLog, path: Path, clock: Clock) -> None:
    def work() -> None:
        for _ in range(500):
            audit.read(Person(), "photos", samples=2, bytes=3)
            audit.flush()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    audit.flush()
    assert sum(int(str(line["samples"])) for line in lines(path)) == 4000


def test_names_without_end_are_written_before_they_fill_the_memory(audit: AuditLog, path: Path) -> None:
    for number in range(5000):
        audit.read(Person(), f"{number:05d}" + "x" * 1000, samples=1, bytes=1)
    assert len(lines(path)) == 4096
    assert all(len(str(line["dataset"])) == 256 for line in lines(path))


def test_refusals_are_one_line_per_second_and_address(audit: AuditLog, path: Path, clock: Clock) -> None:
    for _ in range(300):
        audit.refused(Person("anonymous"), "token not accepted")
        clock.now += 0.01
    audit.refused(Person("anonymous", "ipv4:192.0.2.2:1"), "token not accepted")
    found = [(line["peer"], line["count"]) for line in lines(path)]
    assert found[0] == ("192.0.2.1", 1)
    assert found[-1] == ("192.0.2.2", 1)
    assert 3 <= len(found) <= 5
    clock.now += 1
    audit.flush()
    assert sum(int(str(line["count"])) for line in lines(path)) == 301


def test_closing_tells_of_the_last_refusals(audit: AuditLog, path: Path) -> None:
    for _ in range(5):
        audit.refused(Person(), "scope", scope="admin", dataset="photos")
    audit.close()
    told = [(line["outcome"], line["scope"], line["dataset"], line["count"]) for line in lines(path)]
    assert told == [("scope", "admin", "photos", 1), ("scope", "admin", "photos", 4)]


def test_a_quiet_address_is_forgotten(audit: AuditLog, clock: Clock) -> None:
    audit.refused(Person(), "no token")
    clock.now += 2
    audit.flush()
    assert audit._refusals == {}


def test_refusals_from_everywhere_stay_bounded(audit: AuditLog, path: Path, clock: Clock) -> None:
    for number in range(5000):
        audit.refused(Person("anonymous", f"ipv4:10.0.{number >> 8}.{number & 255}:1"), "no token")
    assert len(audit._refusals) == 4097
    clock.now += 1
    audit.flush()
    assert sum(int(str(line["count"])) for line in lines(path)) == 5000
    assert lines(path)[-1]["peer"] == "many addresses"


@given(text=st.text() | st.text(alphabet='\n\r\u2028\u0085"\\{}'), number=st.floats())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_no_name_can_forge_a_line(path: Path, text: str, number: float) -> None:
    path.unlink(missing_ok=True)
    audit = AuditLog(path, clock=Clock())
    audit.event("drain", Person(text), dataset=text, outcome=text, number=number)
    audit.read(Person(text), text, samples=1, bytes=1)
    audit.close()
    assert path.read_bytes().count(b"\n") == len(path.read_text().splitlines()) == 2
    for line in path.read_bytes().splitlines():
        found = json.loads(line, parse_constant=pytest.fail)
        assert found["dataset"] == found["caller"] == text[:256]


def test_the_file_is_opened_anew_after_logrotate(audit: AuditLog, path: Path) -> None:
    audit.event("first", Person())
    path.rename(path.with_suffix(".1"))
    audit.event("second", Person())
    audit.event("third", Person())
    assert [line["action"] for line in lines(path.with_suffix(".1"))] == ["first"]
    assert [line["action"] for line in lines(path)] == ["second", "third"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_lines_are_appended_to_what_is_there(audit: AuditLog, path: Path) -> None:
    audit.event("first", Person())
    second = AuditLog(path)
    second.event("second", Person())
    second.close()
    assert [line["action"] for line in lines(path)] == ["first", "second"]


def test_a_line_torn_by_a_kill_does_not_swallow_the_next(path: Path) -> None:
    path.write_text('{"action": "fir')
    audit = AuditLog(path)
    audit.event("second", Person())
    audit.close()
    assert json.loads(path.read_text().splitlines()[1])["action"] == "second"


def test_a_full_disk_costs_one_warning_and_a_count(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditLog(Path("/dev/full"), clock=clock)
    for _ in range(5):
        audit.event("drain", Person())
    audit.close()
    assert audit.lost == 5
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left" in caplog.text


def test_after_a_full_disk_the_log_says_what_it_lacks(audit: AuditLog, path: Path) -> None:
    audit.event("first", Person())
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
        audit.event("second", Person())
        audit.event("third", Person())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    audit.event("fourth", Person())
    first, torn, fourth, note = path.read_text().splitlines()
    assert json.loads(first)["action"] == "first"
    assert len(torn) == 10
    assert json.loads(fourth)["action"] == "fourth"
    assert (json.loads(note)["action"], json.loads(note)["count"]) == ("lines lost", 2)
    assert audit.lost == 2


def test_a_folder_that_vanishes_costs_lines_and_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    audit = AuditLog(folder / "audit.log")
    (folder / "audit.log").unlink()
    folder.rmdir()
    audit.event("first", Person())
    assert audit.lost == 1
    folder.mkdir()
    audit.event("second", Person())
    audit.close()
    assert [line["action"] for line in lines(folder / "audit.log")] == ["second", "lines lost"]


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for bad in (tmp_path, tmp_path / "no" / "folder", tmp_path / "pipe"):
        with pytest.raises(WrongUse, match="cannot be written"):
            AuditLog(bad)


def test_no_path_is_no_log() -> None:
    audit = AuditLog(None)
    audit.event("drain", Person())
    audit.read(Person(), "photos", samples=1, bytes=1)
    audit.refused(Person(), "no token")
    audit.flush()
    audit.close()
    assert audit.lost == 0
