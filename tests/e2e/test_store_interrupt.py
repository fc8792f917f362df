"""Ctrl-C while a store does not answer ends the program at once; a forked child is told so."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest

import headwater as hw
from forks import in_child
from headwater.errors import ForkedUse
from rigs import load, make_folder
from stores import StoreProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

AT_ONCE = 0.5
"""Seconds until the program sees Ctrl-C, and until all that is ours has ended; both take milliseconds."""
END_SECONDS = 20.0
"""Until the process is gone: torch alone needs half a second to unload, and more where a machine is busy."""
QUIET = 0.5
"""Seconds without a word after which a program that prints every batch is waiting for the store."""

OPEN = """
import atexit, sys, time
# Registered first, it runs last: after threads were waited for and everything else has cleaned up.
atexit.register(lambda: print("cleaned", time.monotonic(), flush=True))
import headwater as hw
from headwater import transforms as T

print("begin", flush=True)
try:
    data = hw.open(sys.argv[1], link=hw.Link(deadline_seconds=20))
    {body}
except KeyboardInterrupt:
    print("interrupted", time.monotonic(), flush=True)
    raise
"""
LOAD = OPEN.format(
    body="""
    loader = hw.DataLoader(data, [T.Resize((16, 16))], batch_size=4, num_workers=int(sys.argv[2]))
    while True:
        for batch in loader:
            print("batch", flush=True)
"""
)
SLEEP = OPEN.format(
    body="""
    loader = hw.DataLoader(data, [T.Resize((16, 16))], batch_size=4, num_workers=int(sys.argv[2]))
    for batch in loader:
        print("batch", flush=True)
        time.sleep(60)
"""
)


class Starter:
    """Starts programs that read from the store; whatever a test does, they are gone afterwards."""

    def __init__(self, store: StoreProcess) -> None:
        self._store, self._programs = store, []

    _programs: list[subprocess.Popen[str]]

    def __call__(self, program: str, workers: int = 0) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        made = subprocess.Popen(
            [sys.executable, "-c", program, self._store.address, str(workers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._programs.append(made)
        return made

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.kill()
            program.communicate()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    with StoreProcess({"photos": make_folder(tmp_path_factory.mktemp("photos"))}) as store:
        yield store


@pytest.fixture
def store(shared: StoreProcess) -> Iterator[StoreProcess]:
    yield shared
    shared.resume()


@pytest.fixture
def start(store: StoreProcess) -> Iterator[Starter]:
    with Starter(store) as starter:
        yield starter


def wait_for(program: subprocess.Popen[str], word: str) -> None:
    assert program.stdout is not None
    while word not in (line := program.stdout.readline()):
        assert line, "it ended too early"


def wait_for_quiet(program: subprocess.Popen[str]) -> None:
    assert program.stdout is not None
    while select.select([program.stdout], [], [], QUIET)[0]:
        assert os.read(program.stdout.fileno(), 1 << 16), "it ended too early"


def interrupt(program: subprocess.Popen[str]) -> None:
    """Ctrl-C reaches the program at once, nothing of ours holds it up, and it ends."""
    children = psutil.Process(program.pid).children(recursive=True)
    sent = time.monotonic()
    program.send_signal(signal.SIGINT)
    output, errors = program.communicate(timeout=END_SECONDS)
    assert program.returncode in (-signal.SIGINT, 128 + signal.SIGINT), errors
    assert "KeyboardInterrupt" in errors
    times = dict(line.split() for line in output.splitlines() if " " in line)
    assert float(times["interrupted"]) - sent < AT_ONCE
    assert float(times["cleaned"]) - sent < AT_ONCE
    assert not children


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_of_a_blocked_read(store: StoreProcess, start: Starter, workers: int) -> None:
    program = start(LOAD, workers)
    wait_for(program, "batch")
    store.suspend()
    wait_for_quiet(program)
    interrupt(program)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_of_the_loops_own_code(store: StoreProcess, start: Starter, workers: int) -> None:
    program = start(SLEEP, workers)
    wait_for(program, "batch")
    store.suspend()
    wait_for_quiet(program)
    interrupt(program)


def test_an_interrupt_while_a_store_is_opened(store: StoreProcess, start: Starter) -> None:
    store.suspend()
    program = start(OPEN.format(body="pass"))
    wait_for(program, "begin")
    wait_for_quiet(program)
    interrupt(program)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_remote_dataset_in_a_forked_child(store: StoreProcess) -> None:
    with closing(hw.open(store.address)) as data:
        assert len(list(load(data, workers=0))) == 9
        answer = in_child(lambda: data.store.read(data.positions()[:1]))
        assert answer.startswith(ForkedUse.__name__)
        assert str(os.getpid()) in answer
        assert in_child(lambda: list(load(data, workers=0))).startswith(ForkedUse.__name__)
        assert in_child(lambda: list(load(data, workers=2))).startswith(ForkedUse.__name__)
        again = in_child(lambda: hw.open(store.address))  # Flight would hang there, also when opened anew
        assert again.startswith(ForkedUse.__name__)
        assert "spawn" in again
        assert len(list(load(data, workers=2))) == 9
