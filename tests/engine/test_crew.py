"""Threads that come when they are needed, keep nothing alive, and hold up nobody's exit."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest

from headwater.engine.crew import Crew, Daemons, Inline
from headwater.errors import WrongUse

PATIENCE_SECONDS = 20.0


def names(prefix: str) -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith(prefix))


def wait_until_gone(prefix: str) -> None:
    for thread in threading.enumerate():
        if thread.name.startswith(prefix):
            thread.join(PATIENCE_SECONDS)
    assert not names(prefix)


class TestDaemons:
    def test_a_thread_starts_when_none_is_idle_and_no_sooner(self) -> None:
        pool = Daemons(8, "few")
        assert not names("few")
        for _ in range(20):
            done = threading.Event()
            pool.submit(done.set)
            assert done.wait(PATIENCE_SECONDS)
        # a thread may not yet have noted that it is idle when the next call comes
        assert 1 <= len(names("few")) <= 3
        pool.shutdown()
        wait_until_gone("few")

    def test_no_more_than_allowed(self) -> None:
        pool = Daemons(3, "most")
        gate, begun, ended = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)

        def call() -> None:
            begun.release()
            gate.wait(PATIENCE_SECONDS)
            ended.release()

        for _ in range(10):
            pool.submit(call)
        for _ in range(3):
            assert begun.acquire(timeout=PATIENCE_SECONDS)
        assert not begun.acquire(timeout=0.05)
        assert len(names("most")) == 3
        gate.set()
        for _ in range(10):
            assert ended.acquire(timeout=PATIENCE_SECONDS)
        pool.shutdown()
        wait_until_gone("most")

    def test_many_callers(self) -> None:
        pool = Daemons(4, "callers")
        counted, lock, ended = [0], threading.Lock(), threading.Semaphore(0)

        def count() -> None:
            with lock:
                counted[0] += 1
            ended.release()

        def submit() -> None:
            for _ in range(200):
                pool.submit(count)

        callers = [threading.Thread(target=submit) for _ in range(5)]
        for caller in callers:
            caller.start()
        for _ in range(1000):
            assert ended.acquire(timeout=PATIENCE_SECONDS)
        assert counted == [1000]
        assert len(names("callers")) <= 4
        pool.shutdown()
        wait_until_gone("callers")

    def test_arguments_are_not_kept_alive_by_an_idle_thread(self) -> None:
        class Batch:
            pass

        pool = Daemons(1, "keeps")
        batch, done = Batch(), threading.Event()
        gone = weakref.ref(batch)
        pool.submit(lambda held: None, batch)
        del batch
        pool.submit(done.set)
        assert done.wait(PATIENCE_SECONDS)
        gc.collect()
        assert gone() is None
        pool.shutdown()

    def test_closed_takes_nothing(self) -> None:
        pool = Daemons(1, "closed")
        pool.shutdown()
        with pytest.raises(WrongUse, match="was closed"):
            pool.submit(print)

    @pytest.mark.parametrize("cancel", [True, False])
    def test_calls_that_wait_are_dropped_only_on_demand(self, cancel: bool) -> None:
        pool = Daemons(1, "waits")
        gate, begun = threading.Event(), threading.Event()
        made: list[int] = []
        pool.submit(lambda: (begun.set(), gate.wait(PATIENCE_SECONDS)))  # type: ignore[arg-type, return-value]
        for number in range(3):
            pool.submit(made.append, number)
        assert begun.wait(PATIENCE_SECONDS)
        pool.shutdown(cancel_futures=cancel)
        gate.set()
        wait_until_gone("waits")
        assert made == ([] if cancel else [0, 1, 2])

    def test_a_call_that_raises_is_logged_and_costs_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        pool = Daemons(1, "raises")

        def fail() -> None:
            raise ArithmeticError("no such luck")

        done = threading.Event()
        for _ in range(3):
            pool.submit(fail)
        pool.submit(done.set)
        assert done.wait(PATIENCE_SECONDS)
        assert caplog.text.count("ArithmeticError: no such luck") == 3
        pool.shutdown()
        wait_until_gone("raises")

    def test_the_end_of_the_program_does_not_wait_for_them(self) -> None:
        program = (
            "import threading\n"
            "from headwater.engine.crew import Daemons\n"
            "begun = threading.Event()\n"
            "def hang():\n    begun.set()\n    threading.Event().wait()\n"
            "Daemons(2, 'hang').submit(hang)\n"
            "begun.wait()\nprint('over')\n"
        )
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=os.environ
        )
        assert (ended.stdout, ended.returncode) == ("over\n", 0)


class TestCrew:
    def test_patient_readers_are_daemons(self) -> None:
        crew = Crew(1, 3, patient=True)
        assert isinstance(crew.read, Daemons)
        crew.close()
        with pytest.raises(WrongUse, match="was closed"):
            crew.check()

    def test_without_workers_there_are_no_threads(self) -> None:
        crew = Crew(0, 5, patient=True)
        assert crew.readers == 0
        assert isinstance(crew.read, Inline)
        here: list[int] = []
        crew.read.submit(lambda: here.append(threading.get_ident()))
        assert here == [threading.get_ident()]
        crew.close()

    def test_closing_wakes_whoever_waits_for_a_run(self) -> None:
        class Run:
            error: Exception | None = None

            def abort(self, error: Exception) -> None:
                self.error = error

        crew, run = Crew(1, 1), Run()
        crew.runs.add(run)
        crew.close()
        assert isinstance(run.error, WrongUse)

    def test_fewer_than_no_workers(self) -> None:
        with pytest.raises(WrongUse, match="-1"):
            Crew(-1, 1)
