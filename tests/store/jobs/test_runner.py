"""Jobs run one at a time, go on after an end of any kind, and end when they are told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from headwater.errors import ModelNotFound, Unreachable, WrongUse
from headwater.store.jobs.record import DONE, FAILED, RUNNING, STOPPED, WAITING, JobFolder, JobRecord
from headwater.store.jobs.runner import Jobs, Paused, Running, Work

SECONDS = 10.0


def record(id: str, model: str = "m") -> JobRecord:
    return JobRecord(id=id, kind="count", dataset="photos", version="v", model=model, by="me", begun=id)


@contextmanager
def running(folder: Path, work: Work) -> Iterator[Jobs]:
    jobs = Jobs(JobFolder(folder), {"count": work}, trouble_seconds=0.05)
    jobs.start()
    try:
        yield jobs
    finally:
        jobs.close()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)


def state(jobs: Jobs, id: str) -> str:
    return next(one.state for one in jobs.list() if one.id == id)


def test_one_after_the_other(tmp_path: Path) -> None:
    seen: list[str] = []
    inside = threading.Semaphore(1)

    def work(job: Running) -> None:
        assert inside.acquire(blocking=False), "two at once"
        seen.append(job.record.id)
        job.save(cursor=3)
        inside.release()

    with running(tmp_path, work) as jobs:
        for number in range(5):
            jobs.add(record(f"{number}", model=f"{number}"))
        until(lambda: all(one.state == DONE for one in jobs.list()))
    assert seen == ["0", "1", "2", "3", "4"]
    assert {one.cursor for one in JobFolder(tmp_path).load()} == {3}


def test_the_same_wish_finds_the_same_job(tmp_path: Path) -> None:
    go = threading.Event()
    with running(tmp_path, lambda job: go.wait(SECONDS) and None) as jobs:
        first = jobs.add(record("a"))
        assert jobs.add(record("a")).id == "a"
        assert jobs.add(record("b")).id == "a", "it does the same"
        assert jobs.add(record("c", model="other")).id == "c"
        go.set()
        until(lambda: state(jobs, "a") == state(jobs, "c") == DONE)
        assert first.state == WAITING
        assert jobs.add(record("a")).state == DONE, "sent again after it was over"
        assert jobs.add(record("b")).id == "b", "the one before is over"


def test_what_was_unfinished_goes_on(tmp_path: Path) -> None:
    begun = threading.Event()

    def halfway(job: Running) -> None:
        job.save(cursor=7)
        begun.set()
        until(job.over)

    with running(tmp_path, halfway) as jobs:
        jobs.add(record("a"))
        jobs.add(record("b", model="other"))
        assert begun.wait(SECONDS)
    left = JobFolder(tmp_path).load()
    assert [(one.state, one.cursor) for one in left] == [(RUNNING, 7), (WAITING, 0)]
    seen: list[tuple[str, int]] = []
    with running(tmp_path, lambda job: seen.append((job.record.id, job.record.cursor))) as jobs:
        until(lambda: state(jobs, "a") == state(jobs, "b") == DONE)
    assert seen == [("a", 7), ("b", 0)]


def test_a_stopped_job_ends_and_stays_so(tmp_path: Path) -> None:
    begun, held = threading.Event(), threading.Event()

    def work(job: Running) -> None:
        begun.set()
        until(job.over)
        held.wait(SECONDS)
        job.save(cursor=9)

    with running(tmp_path, work) as jobs:
        jobs.add(record("a"))
        jobs.add(record("b", model="other"))
        assert begun.wait(SECONDS)
        assert jobs.stop("b").state == STOPPED
        assert jobs.stop("a").state == STOPPED
        # acknowledged, so it is on disk although its thread has not ended yet
        assert [one.state for one in JobFolder(tmp_path).load()] == [STOPPED, STOPPED]
        held.set()
        until(lambda: state(jobs, "a") == STOPPED)
        assert jobs.add(record("c")).id == "c", "a stopped one is not found again"
        until(lambda: state(jobs, "c") != WAITING)
        jobs.stop("c")
    found = {one.id: one.state for one in JobFolder(tmp_path).load()}
    assert found == {"a": STOPPED, "b": STOPPED, "c": STOPPED}


def test_a_stop_that_meets_a_save_is_not_lost(tmp_path: Path) -> None:
    """A job is about to write that it runs; what was acknowledged in between stays on disk."""
    inside, go, saved, held = (threading.Event() for _ in range(4))

    class Slow(JobFolder):
        def save(self, record: JobRecord) -> None:
            if record.cursor == 1 and not inside.is_set():
                inside.set()
                assert go.wait(SECONDS)
            super().save(record)

    def work(job: Running) -> None:
        job.save(cursor=1)
        saved.set()
        assert held.wait(SECONDS)

    jobs = Jobs(Slow(tmp_path), {"count": work})
    jobs.start()
    jobs.add(record("a"))
    assert inside.wait(SECONDS)
    stopper = threading.Thread(target=jobs.stop, args=("a",))
    stopper.start()
    stopper.join(0.2)  # it ends at once only if it does not wait for the save
    go.set()
    assert saved.wait(SECONDS)
    stopper.join(SECONDS)
    (left,) = JobFolder(tmp_path).load()
    assert left.state == STOPPED, "the store may be killed here"
    held.set()
    jobs.close()
    (left,) = JobFolder(tmp_path).load()
    assert (left.state, left.cursor) == (STOPPED, 1), "and how far it came is known"


def test_stopping_what_is_over_changes_nothing(tmp_path: Path) -> None:
    with running(tmp_path, lambda job: None) as jobs:
        jobs.add(record("a"))
        until(lambda: state(jobs, "a") == DONE)
        assert jobs.stop("a").state == DONE
        with pytest.raises(WrongUse, match="no job 'x'"):
            jobs.stop("x")


@pytest.mark.parametrize("trouble", [Paused("no workers"), Unreachable("no database")])
def test_what_may_pass_is_tried_again(tmp_path: Path, trouble: Exception) -> None:
    tries: list[int] = []

    def work(job: Running) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise trouble

    with running(tmp_path, work) as jobs:
        jobs.add(record("a"))
        until(lambda: state(jobs, "a") == DONE)
        assert len(tries) == 3
        assert jobs.list()[0].error == ""


def test_trouble_is_said_while_it_lasts_and_can_be_stopped(tmp_path: Path) -> None:
    def work(job: Running) -> None:
        raise Paused("no workers")

    with running(tmp_path, work) as jobs:
        jobs.add(record("a"))
        until(lambda: jobs.list()[0].error == "no workers")
        jobs.stop("a")
        until(lambda: JobFolder(tmp_path).load()[0].state == STOPPED)


def test_a_failure_is_said_and_the_next_job_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def work(job: Running) -> None:
        if job.record.id == "a":
            raise ModelNotFound("it is gone")
        if job.record.id == "b":
            raise ZeroDivisionError("at /secret/place")

    with running(tmp_path, work) as jobs:
        for id in ("a", "b", "c"):
            jobs.add(record(id, model=id))
        until(lambda: state(jobs, "c") == DONE)
        failed = jobs.list()[:2]
    assert [one.state for one in failed] == [FAILED, FAILED]
    assert failed[0].error == "it is gone"
    assert failed[1].error == "ZeroDivisionError; the store's log says more"
    assert "secret" in caplog.text


def test_no_such_kind(tmp_path: Path) -> None:
    jobs = Jobs(JobFolder(tmp_path), {"count": lambda job: None})
    with pytest.raises(WrongUse, match="known: count"):
        jobs.add(JobRecord(id="a", kind="dance", dataset="", version="", model="", by="", begun=""))
    assert not list(tmp_path.iterdir())


def test_progress_is_seen_before_it_is_kept(tmp_path: Path) -> None:
    shown, go = threading.Event(), threading.Event()

    def work(job: Running) -> None:
        job.show(cursor=5)
        shown.set()
        go.wait(SECONDS)

    with running(tmp_path, work) as jobs:
        jobs.add(record("a"))
        assert shown.wait(SECONDS)
        assert jobs.list()[0].cursor == 5
        assert JobFolder(tmp_path).load()[0].cursor == 0
        go.set()
        until(lambda: state(jobs, "a") == DONE)


def test_what_is_apart_waits_for_no_other(tmp_path: Path) -> None:
    """And no other for it; of its own kind, too, one runs at a time."""
    go, seen = threading.Event(), []

    def slow(job: Running) -> None:
        go.wait(SECONDS)

    def quick(job: Running) -> None:
        seen.append(job.record.id)

    jobs = Jobs(JobFolder(tmp_path), {"count": slow, "quick": quick}, apart=("quick",))
    jobs.start()
    jobs.add(record("a"))
    for id in ("b", "c"):
        jobs.add(msgspec.structs.replace(record(id, model=id), kind="quick"))
    until(lambda: state(jobs, "b") == state(jobs, "c") == DONE)
    assert (seen, state(jobs, "a")) == (["b", "c"], RUNNING)
    assert jobs.unfinished == 1
    go.set()
    until(lambda: state(jobs, "a") == DONE)
    jobs.close()
